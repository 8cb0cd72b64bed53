"""Packets: small and large ones arrive whole, and memory is used again."""

import os
import socket
from collections.abc import Iterator

import numpy as np
import pytest

from penstock.element.buffers import ALIGN, Packing, unpack
from penstock.engine.processes import packets
from penstock.engine.processes.packets import Packets


@pytest.fixture
def ends() -> Iterator[tuple[Packets, Packets]]:
    pair = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    near, far = map(Packets, pair)
    yield near, far
    near.close()
    far.close()


def send_array(end: Packets, array: np.ndarray) -> None:
    packing = Packing("sent")
    end.send(["array", packing.column(array)], packing.parts)


def receive_array(end: Packets) -> np.ndarray:
    received = end.receive()
    assert received is not None
    note, body, descriptor = received
    assert note[0] == "array"
    assert descriptor == -1
    [array] = unpack([note[1]], body)
    return array


@pytest.mark.parametrize("size", [0, 1, 1000, 10_000, 1_000_000])
def test_arrays_arrive_aligned_and_writable(ends: tuple[Packets, Packets], size: int) -> None:
    near, far = ends
    send_array(near, np.arange(size, dtype=np.float64))
    array = receive_array(far)
    np.testing.assert_array_equal(array, np.arange(size))
    assert array.flags.writeable
    assert not size or array.__array_interface__["data"][0] % ALIGN == 0


def test_memory_is_used_again_after_the_receiver_has_released_it(
    ends: tuple[Packets, Packets],
) -> None:
    near, far = ends
    addresses = set()
    for _ in range(5):
        send_array(near, np.zeros(100_000))
        array = receive_array(far)
        addresses.add(array.__array_interface__["data"][0])
        del array
        far.send("released")
        assert near.receive() is not None
    assert len(addresses) == 1


def test_arrays_that_are_kept_do_not_change(
    ends: tuple[Packets, Packets], monkeypatch: pytest.MonkeyPatch
) -> None:
    """More of them than the slabs of a connection usually hold."""
    near, far = ends
    near._cells._limit = 2 << 20
    kept = []
    for number in range(12):
        send_array(near, np.full(100_000, number))
        kept.append(receive_array(far))
        far.send("thanks")
        assert near.receive() is not None
    assert [int(array[0]) for array in kept] == list(range(12))
    del kept
    far.send("released")
    assert near.receive() is not None
    send_array(near, np.full(1_000_000, 7))
    assert int(receive_array(far)[-1]) == 7
    assert len(near._cells._slabs) == 1, "slabs that are idle beyond the limit are dropped"


def test_a_descriptor_comes_with_a_large_packet(ends: tuple[Packets, Packets]) -> None:
    near, far = ends
    read, write = os.pipe()
    near.send("x" * 100_000, descriptor=write)
    received = far.receive()
    assert received is not None
    note, _, descriptor = received
    assert len(note) == 100_000
    os.write(descriptor, b"here")
    assert os.read(read, 4) == b"here"
    for file in (read, write, descriptor):
        os.close(file)


def test_the_end(ends: tuple[Packets, Packets]) -> None:
    near, far = ends
    near.send("last")
    near.shut()
    assert far.receive() is not None
    assert far.receive() is None
    with pytest.raises(OSError, match="Broken pipe"):
        far.send("too late")


def test_without_memory_the_sender_is_told(
    ends: tuple[Packets, Packets], monkeypatch: pytest.MonkeyPatch
) -> None:
    near, _ = ends

    def fail(*_: object) -> int:
        raise OSError("no more")

    monkeypatch.setattr(os, "memfd_create", fail)
    with pytest.raises(MemoryError, match="no shared memory for"):
        near.send("x" * (packets._SMALL + 1))
