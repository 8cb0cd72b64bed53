import resource
import subprocess
import sys

import numpy as np

from penstock.data import Dataset, Options
from penstock.engine import heap

PROGRAM = """
import resource
from penstock.data import Dataset

list(Dataset.range(1))
faults = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_minflt
before = faults()
for _ in range(100):
    elements = [bytes(100_000) for _ in range(20)]
    del elements
print(faults() - before)
"""


def test_elements_use_the_memory_of_elements_before_them():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, check=True)
    pages_of_one_round = 20 * 100_000 // 4096
    assert int(done.stdout) < 10 * pages_of_one_round


BATCHES = """
import resource
from penstock import io

records = [io.serialize_example({"image": bytes(500_000), "label": 1})] * 200
features = {"image": io.FixedLenFeature([], "string")}
faults = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(3):
    batch = io.parse_example(records, features)
before = faults()
for _ in range(6):
    batch = io.parse_example(records, features)
print(faults() - before)
"""


def test_large_batches_of_strings_use_the_memory_of_batches_before_them():
    done = subprocess.run([sys.executable, "-c", BATCHES], capture_output=True, check=True)
    pages_of_one_batch = 200 * 500_000 // 4096
    assert int(done.stdout) < pages_of_one_batch // 2


FLOATS = """
import resource
import numpy as np
from penstock import io

records = [io.serialize_example({"x": np.full(40_000, row, np.float32)}) for row in range(250)]
features = {"x": io.FixedLenFeature([40_000], "float32")}
faults = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(3):
    batch = io.parse_example(records, features)["x"]
before = faults()
for _ in range(6):
    batch = io.parse_example(records, features)["x"]
print(faults() - before)
"""


def test_large_arrays_use_the_memory_of_arrays_before_them():
    done = subprocess.run([sys.executable, "-c", FLOATS], capture_output=True, check=True)
    assert int(done.stdout) < 10, "a batch has 19 pages of 2 MB"


def test_memory_is_used_again_only_when_no_view_of_it_is_left():
    first = heap.allocate_bytes(40 << 20)
    first[:] = 1
    view, place = first[5:10], first.ctypes.data
    del first
    second = heap.allocate_bytes(40 << 20)
    second[:] = 2
    assert view.tolist() == [1] * 5
    del view
    third = heap.allocate_bytes(39 << 20)
    assert (len(third), third.ctypes.data) == (39 << 20, place)
    assert heap.allocate_bytes(40 << 20).ctypes.data != second.ctypes.data


def test_little_memory_is_kept():
    for size in range(32, 72, 4):
        arrays = [heap.allocate_bytes(size << 20) for _ in range(6)]
        del arrays
    assert len(heap._kept) == 4


def pages_of_a_large_array(_):
    """How many pages of memory the kernel provides for an array of 32 MB."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    np.ones(32 << 20, np.uint8)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def test_processes_use_the_memory_of_large_arrays_again():
    calls = Dataset.range(4).map(pages_of_a_large_array, num_parallel_calls=1)
    pages = list(map(int, calls.with_options(Options(executor="processes"))))
    # Without the setting: 8192 pages each time, or 16 large ones.
    assert min(pages[1:]) < 8
