"""The workloads of `scripts/bench data`: pipelines of one dataset, read in one process."""

from __future__ import annotations

from benchmarks.workloads import Rival, Suite, Workload, within

GATHERED = "a gather in __getitems__, no collate"
CUT = "documents concatenated until they make a sequence, then cut"
UNCHECKED = "one file after the other, checksums not checked"

WORKLOADS = (
    Workload(
        "range_batch",
        "range(n).batch(1024)",
        1_000_000,
        200_000,
        (
            Rival("tfdata", 50),
            Rival("grain", 200, share=0.2),
            Rival("torch_loader", share=0.5),
            Rival("bare"),
        ),
    ),
    Workload(
        "map",
        "range(n).map(lambda x: x * x).batch(1024)",
        1_000_000,
        200_000,
        (
            Rival("tfdata", 20, share=0.05),
            Rival("grain", 10, share=0.2),
            Rival("torch_loader", 1, note="__getitem__ called from __getitems__"),
            Rival("bare", within(1.5), note="Python loop over NumPy scalars"),
        ),
    ),
    Workload(
        "map_vectorized",
        "range(n).map(lambda x: x * x, vectorized=True).batch(1024)",
        1_000_000,
        200_000,
        (
            Rival("tfdata", 500, share=0.05, note="map of elements"),
            Rival("tfdata", variant="batched", note="batch first, then map of batches"),
            Rival("bare"),
        ),
    ),
    Workload(
        "filter",
        "range(n).filter(lambda x: x % 3 == 0).batch(1024)",
        1_000_000,
        200_000,
        (
            Rival("tfdata", 20, share=0.05),
            Rival("grain", share=0.2),
            Rival("torch_loader", note="IterableDataset"),
            Rival("bare", note="Python loop over NumPy scalars"),
        ),
    ),
    Workload(
        "shuffle",
        "range(n).shuffle(10_000).batch(1024)",
        1_000_000,
        200_000,
        (
            Rival("tfdata", 3),
            Rival("grain", share=0.2, note="shuffles within blocks of 10,000"),
            Rival("bare", note="Python loop over a list of 10,000"),
        ),
    ),
    Workload(
        "rows",
        "from_tensor_slices((n x 128 float32, n int64)).shuffle(n).batch(256)",
        100_000,
        50_000,
        (
            Rival("tfdata", 30),
            Rival("grain", 100, share=0.5),
            Rival("torch_loader", 30, note="map dataset over NumPy, default collate"),
            Rival("torch_loader", variant="gathered", note=GATHERED),
            Rival("bare", within(1.3), note="permutation and take"),
        ),
    ),
    Workload(
        "images",
        "from_tensor_slices(n x 224 x 224 x 3 uint8).shuffle(n).batch(64)",
        3_000,
        3_000,
        (
            Rival("tfdata", 4),
            Rival("grain", 4),
            Rival("torch_loader", 1.3, note="TensorDataset, default collate"),
            Rival("torch_loader", variant="gathered", note=GATHERED),
            Rival("bare", within(1.1), note="permutation and take"),
        ),
    ),
    Workload(
        "one_by_one",
        "for x in range(n)",
        100_000,
        50_000,
        (
            Rival("tfdata", 100, share=0.2),
            Rival("grain", 20, share=0.5),
            Rival("torch_loader", share=0.5),
            Rival("bare", note="for x in numpy.arange(n)"),
        ),
    ),
    Workload(
        "padded_batch",
        "range(n).map(lambda i: flat[starts[i]:ends[i]]).padded_batch(64)",
        100_000,
        20_000,
        (
            Rival("tfdata", 3, share=0.2),
            Rival("torch_loader", note="pad_sequence as collate"),
            Rival("bare", note="zeros, filled row by row"),
        ),
    ),
    Workload(
        "packed",
        "range(n).map(lambda i: flat[starts[i]:ends[i]]).unbatch().batch(1025)",
        20_000,
        5_000,
        (
            Rival("tfdata", 10, share=0.05),
            Rival("penstock", variant="generator", note="from_generator instead of map"),
            Rival("bare", within(2), note=CUT),
        ),
    ),
    Workload(
        "packed_ragged",
        "from_tensor_slices(a Ragged of n documents).unbatch().batch(1025)",
        20_000,
        5_000,
        (Rival("bare", within(2), note=CUT),),
    ),
    Workload(
        "tfrecord",
        "TFRecordDataset(8 files, n records of 1 KB).batch(256)",
        100_000,
        20_000,
        (Rival("tfdata", 1.2), Rival("bare", note=UNCHECKED)),
    ),
    Workload(
        "tfrecord_interleave",
        "list_files().interleave(TFRecordDataset, 4, num_parallel_calls=AUTOTUNE).batch(256)",
        100_000,
        20_000,
        (Rival("tfdata", 1.5), Rival("bare", note=UNCHECKED)),
    ),
)

DATA = Suite(
    "data",
    "Pipelines",
    "element",
    """Every run iterates afresh and to the end; making the data and the pipeline is not timed. The
first pass, which also touches fresh memory, is given apart. Slow peers get fewer elements, as
noted, and are compared by the element.""",
    WORKLOADS,
)
