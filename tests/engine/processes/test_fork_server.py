"""What processes of a fork server do with their memory; and how they ended, in words."""

import ctypes
import resource

import numpy as np
import pytest

from penstock.data import Dataset, Options
from penstock.engine.processes.fork_server import describe_exit


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (0, "exited with code 0"),
        (3, "exited with code 3"),
        (-9, "was killed by signal 9 (killed)"),
        (-11, "was killed by signal 11 (segmentation fault)"),
        (-1000, "was killed by signal 1000"),
    ],
)
def test_an_exit_code_in_words(code: int, words: str) -> None:
    assert describe_exit(code) == words


def pages_of_a_large_array(_: object) -> int:
    """How many pages of memory the kernel has to provide for an array of 32 MB."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    np.ones(32 << 20, np.uint8)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="another C library")
def test_the_memory_of_large_arrays_is_reused() -> None:
    calls = Dataset.range(4).map(pages_of_a_large_array, num_parallel_calls=1)
    pages = list(map(int, calls.with_options(Options(executor="processes"))))
    # Without the setting: 8192 pages each time, or 16 large ones.
    assert min(pages[1:]) < 8
