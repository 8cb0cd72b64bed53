"""Receive buffers: reused, but never while an array shows them."""

import gc
import subprocess
import sys

import numpy as np
import pytest

from penstock.engine.processes.chunk_memory import ReceiveBuffers, size_class


def address(view: memoryview) -> int:
    return int(np.frombuffer(view, np.uint8).ctypes.data)


@pytest.mark.parametrize("size", [0, 1, 1000, 96 << 10, 1_000_003, 5_000_000])
def test_buffers_are_aligned_and_writable(size: int) -> None:
    view = ReceiveBuffers().take(size)
    assert len(view) == size
    assert not view.readonly
    if size:
        assert address(view) % 64 == 0


def test_a_buffer_is_used_again_once_nothing_shows_it() -> None:
    buffers = ReceiveBuffers()
    view = buffers.take(200_000)
    where, part = address(view), np.frombuffer(view.toreadonly(), np.int32, 10, 64)
    del view
    gc.collect()
    assert address(buffers.take(200_000)) != where
    part = part[2:4]
    assert address(buffers.take(200_000)) != where
    del part
    gc.collect()
    found = {address(view) for view in [buffers.take(200_000) for _ in range(3)]}
    assert where in found


def test_no_more_is_kept_than_the_limit() -> None:
    buffers = ReceiveBuffers(limit=1 << 20)
    kept = [buffers.take(400_000) for _ in range(10)]
    del kept
    gc.collect()
    assert 0 < buffers._idle <= 1 << 20
    buffers.take(5_000_000)
    assert buffers._idle <= 1 << 20


def test_no_thread_waits_for_the_lock() -> None:
    buffers = ReceiveBuffers()
    view = buffers.take(200_000)
    with buffers._lock:
        del view
        gc.collect()
        other = buffers.take(200_000)
    del other
    gc.collect()
    assert buffers._idle == size_class(200_000)


@pytest.mark.parametrize(
    ("size", "room"), [(1, 1), (2, 2), (3, 3), (4, 4), (5, 6), (6, 6), (7, 8), (1025, 1536)]
)
def test_sizes_are_rounded_up(size: int, room: int) -> None:
    assert size_class(size) == room


FORKED = """
import os
import numpy as np
from penstock.engine.processes.chunk_memory import BUFFERS

array = np.frombuffer(BUFFERS.take(1 << 20), np.uint8)
array[:] = 7
go, done = os.pipe()
child = os.fork()
if child == 0:
    os.read(go, 1)
    os._exit(0 if set(array) == {7} else 1)
array[:] = 8
os.write(done, b"x")
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_forked_process_keeps_what_it_received() -> None:
    run = subprocess.run([sys.executable, "-c", FORKED], capture_output=True, text=True)
    assert run.stdout == "0\n", run.stderr
