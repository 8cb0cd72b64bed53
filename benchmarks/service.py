"""The workloads of `scripts/bench service`: from a worker to its client, each a process of its own.

A program's size is a number of elements; `peers/elements.py` has them.
"""

from __future__ import annotations

from benchmarks.workloads import Rival, Suite, Workload

CONSUMERS = 4
WORKERS = 32

SIZES = {
    "scalars": ("an int64 scalar", 2_000_000, 500_000),
    "kilobytes": ("1 KB", 200_000, 50_000),
    "images": ("an image of 150 KB", 8_000, 2_000),
    "megabytes": ("1 MB", 2_000, 500),
    "batches": ("a batch of 128 images, 19 MB", 120, 40),
}
OWED = {
    "scalars": {"tcp": 300.0, "shm": 300.0},
    "kilobytes": {"tcp": 100.0, "shm": 100.0},
    "images": {"tcp": 6.0, "shm": 15.0},
    "megabytes": {"tcp": 2.5, "shm": 8.0},
    "batches": {"tcp": 2.5, "shm": 10.0},
}
SLOW = {
    "scalars": (0.003, 0.005),
    "kilobytes": (0.02, 0.05),
    "images": (0.2, 0.4),
    "megabytes": (0.3, 0.5),
    "batches": (0.3, 0.5),
}
"""The part of the elements that tf.data service gets, and that DataLoader gets."""

MEMCPY = 0.6
"""Batches of 19 MB owe this part of what one core can copy."""


def transfer(name: str, way: str) -> Workload:
    what, elements, quick = SIZES[name]
    service, loader = SLOW[name]
    return Workload(
        f"{name}_{way}",
        f"from_tensors({what}).repeat() by {way}, one worker, one client",
        elements,
        quick,
        (
            Rival("tf_service", OWED[name][way], share=service),
            Rival("torch_loader", share=loader, note="one worker, no collate"),
            Rival("bare", share=loader, note="a copy by one core"),
            *([SHARED] if (name, way) == ("batches", "shm") else []),
        ),
    )


SHARED = Rival("bare", MEMCPY, variant="shared", note="a copy by one core into shared memory")
FUNCTION = Workload(
    "function",
    'range(n).map(1 ms of Python).batch(16) on "local://2"',
    3_200,
    960,
    (
        Rival("penstock", 1.8, share=0.5, variant="alone", note="in one process"),
        Rival("torch_loader", 1.0, note="2 workers"),
        Rival("ray_data", note="2 processors"),
    ),
)
SLEEPING = Workload(
    "sleeping",
    f"range(n).map(20 ms of sleep) on {WORKERS} workers",
    6_400,
    1_600,
    (Rival("penstock", 28.0, share=0.02, variant="one", note="1 worker"),),
)
COORDINATED = Workload(
    "coordinated",
    f"batches in buckets by length for {CONSUMERS} consumers in lock-step, coordinated",
    200,
    60,
    (Rival("penstock", 1.8, variant="apart", note="4 readers of one job, not coordinated"),),
)

SERVICE = Suite(
    "service",
    "Service",
    "element",
    """Dispatcher, worker and client are separate processes, for penstock and for tf.data service.
The elements cost nothing to make: each is the same array again, in `parallel_epochs` by one worker,
which for both sends every element once and asks the dispatcher for nothing on the way. The clock
starts when 16 elements have arrived. tf.data service sends without compression, which is its faster
way here. DataLoader has one worker process and no dispatcher. The bare loop copies each element, by
one core, into one of four places in turn; ordinary memory has large pages, shared memory small.

The function of 1 ms is pure Python that keeps the interpreter to itself. For coordinated reads, a
step takes time in proportion to the longest padded batch of its four consumers; lengths are
distributed as in text (exponentially, mean 100, at most 512) and in buckets of powers of two.""",
    (
        *(transfer(name, way) for name in SIZES for way in ("tcp", "shm")),
        FUNCTION,
        SLEEPING,
        COORDINATED,
    ),
    then="figures",
)
