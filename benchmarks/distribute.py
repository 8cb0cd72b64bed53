"""The workloads of `scripts/bench distribute`: one global batch, cut for more and more replicas.

A program's size is a number of steps, in whole passes over the rows (`peers/material.py` has them).
"""

from __future__ import annotations

from benchmarks.workloads import Rival, Suite, Workload

REPLICAS = (1, 2, 4, 8)


def workload(replicas: int) -> Workload:
    return Workload(
        f"replicas_{replicas}",
        "from_tensor_slices(65,536 x 128 float32).shuffle(65,536).batch(256).repeat() "
        f"on {replicas} logical CPU{'s' * (replicas > 1)}",
        512,
        256,
        (
            Rival("tf_distribute", 10),
            Rival("tf_distribute", 10, variant="ending", note="repeat(1_000_000), which ends"),
            Rival("bare", note="permutation, take, and a view for each replica"),
        ),
    )


DISTRIBUTE = Suite(
    "distribute",
    "Replicas",
    "step",
    """A step is one `next(iterator)` of what `MirroredStrategy.experimental_distribute_dataset`
gives: a batch of 256 rows, cut for all replicas. The iterator is made in the first pass, which is
given apart, and continues in the others. tf.distribute, called eagerly, is slower where the data
may end: it then asks at every step whether there is one.""",
    tuple(map(workload, REPLICAS)),
)
