"""Received frames: malformed ones end their connection and do no other harm."""

import os
import socket
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.engine.processes.chunk_memory import MappedSlabs, Slab
from penstock.errors import (
    DataLossError,
    DeadlineExceededError,
    UnavailableError,
)
from penstock.service.host.data_connection import COMPRESS_ALWAYS, Compressor, Connection
from penstock.service.host.sockets import SLICE, Channel, DescriptorChannel
from penstock.service.protocol import data_messages
from penstock.service.protocol.data_messages import (
    MESSAGE,
    SLAB,
    Closing,
    Done,
    Failed,
    Fetch,
    Mark,
    Release,
    Rows,
    pack_columns,
)
from tests.effort import examples
from tests.service.host.wire_peers import (
    chunk,
    in_thread,
    receive_all,
    rows_of,
)


def raw_pair(
    client: bool, mapped: MappedSlabs | None = None, checks: bool = False
) -> tuple[socket.socket, Connection]:
    """A socket to write anything into, and the connection that reads it."""
    raw, other = socket.socketpair()
    channel = DescriptorChannel(other) if mapped is not None else Channel(other)
    return raw, Connection(channel, "the test", client=client, mapped=mapped, checks=checks)


def frame(message: Any, body: bytes = b"", kind: int = MESSAGE) -> bytes:
    return b"".join([*data_messages.frame(message, len(body), kind), body])


def check_refused(
    data: bytes,
    message: str,
    client: bool = True,
    mapped: MappedSlabs | None = None,
    descriptors: tuple[int, ...] = (),
) -> None:
    raw, connection = raw_pair(client, mapped)
    with raw, connection:
        if descriptors:
            socket.send_fds(raw, [data], descriptors)
        else:
            raw.sendall(data)
        raw.shutdown(socket.SHUT_WR)
        with pytest.raises(DataLossError, match=message):
            connection.receive()
        while raw.recv(100):
            assert not client, "only a worker says why it hangs up"


COLUMNS, PARTS = pack_columns(rows_of(100))
BODY = b"".join(PARTS)


def test_bytes_behind_a_message_without_any() -> None:
    check_refused(frame(Done(1), b"abc"), "3 bytes after a Done")


@pytest.mark.parametrize(
    ("rows", "body"),
    [
        (Rows(1, 0, 1, COLUMNS, nbytes=128), b""),
        (Rows(1, 0, 1, COLUMNS, nbytes=100), BODY),
        (Rows(1, 0, 1, COLUMNS, nbytes=1 << 40), BODY),
        (Rows(1, 0, 1, COLUMNS, 0, 128), BODY),
        (Rows(1, 0, 1, COLUMNS, nbytes=128, packed="lz4"), bytes(200)),
        (Rows(1, 0, 1, COLUMNS, nbytes=128, checked=True), BODY),
        (Rows(1, 0, 1, COLUMNS, nbytes=128, packed="lz4", checked=True), b"abc"),
        (Rows(1, 0, 1, COLUMNS, 0, 128, checked=True), b""),
    ],
)
def test_sizes_that_do_not_agree(rows: Rows, body: bytes) -> None:
    check_refused(frame(rows, body), "bytes after rows of .*, described as 128")


def test_columns_of_another_length() -> None:
    check_refused(
        frame(Rows(1, 0, 2, COLUMNS, nbytes=128), BODY), "a column that does not have 2 rows"
    )


def test_more_rows_than_can_be() -> None:
    nothing = pack_columns(chunk(np.zeros((1 << 40, 0))))[0]
    check_refused(
        frame(Rows(1, 0, 1 << 40, nothing)), "a column that does not have 1099511627776 rows"
    )


@pytest.mark.parametrize("packed", ["lz4", "spam"])
def test_bytes_that_are_not_compressed(packed: str) -> None:
    rows = Rows(1, 0, 1, COLUMNS, nbytes=128, packed=packed)
    check_refused(frame(rows, b"garbage"), "cannot uncompress elements")


def test_bytes_that_become_too_few() -> None:
    _, (squeezed,) = Compressor(COMPRESS_ALWAYS).compress([memoryview(bytes(5000))], 5000)
    columns, _ = pack_columns(rows_of(6000))
    rows = Rows(1, 0, 1, columns, nbytes=6016, packed="lz4")
    check_refused(frame(rows, bytes(squeezed)), "5000 bytes instead of 6016")


def test_segments_where_no_memory_is_shared() -> None:
    check_refused(frame(Rows(1, 0, 1, COLUMNS, 0, 128)), "a segment where no memory is shared")
    check_refused(frame(Slab(0, 4096, 1), kind=SLAB), "shared memory where none is used")
    check_refused(frame(Release((1,))), "a release where no memory is shared", client=False)


def test_a_segment_that_was_never_announced() -> None:
    rows = frame(Rows(1, 0, 1, COLUMNS, 5, 128))
    check_refused(rows, "no segment 5 of 128 bytes", mapped=MappedSlabs())


def test_a_slab_without_its_descriptor() -> None:
    announced = frame(Slab(0, 4096, 1), kind=SLAB)
    check_refused(announced, "announced, but none came", mapped=MappedSlabs())


def test_descriptors_that_are_no_shared_memory() -> None:
    files = len(os.listdir("/proc/self/fd"))
    announced = frame(Slab(0, 4096, 1), kind=SLAB)
    null = os.open(os.devnull, os.O_RDONLY)
    check_refused(announced, "unusable shared memory", mapped=MappedSlabs(), descriptors=(null,))
    plain = os.memfd_create("test", os.MFD_CLOEXEC)
    check_refused(
        announced, "it is not sealed against shrinking", mapped=MappedSlabs(), descriptors=(plain,)
    )
    check_refused(b"garbage" * 9, "not the head", mapped=MappedSlabs(), descriptors=(null, plain))
    many = (null,) * 17
    check_refused(
        frame(Done(1)),
        "descriptors arrived that were not announced",
        mapped=MappedSlabs(),
        descriptors=many,
    )
    os.close(null)
    os.close(plain)
    assert len(os.listdir("/proc/self/fd")) <= files


def test_a_worker_takes_no_descriptors() -> None:
    files = len(os.listdir("/proc/self/fd"))
    raw, connection = raw_pair(client=False)
    with raw, connection, open(os.devnull, encoding="ascii") as null:
        socket.send_fds(raw, [frame(Fetch(1, 2, 3, 4))], [null.fileno()])
        assert connection.receive()[0] == Fetch(1, 2, 3, 4)
        assert len(os.listdir("/proc/self/fd")) <= files + 3
    assert len(os.listdir("/proc/self/fd")) <= files


def test_half_a_frame_is_an_end() -> None:
    whole = frame(Rows(1, 0, 1, COLUMNS, nbytes=128), BODY)
    for length in range(len(whole)):
        raw, connection = raw_pair(client=True)
        with raw, connection:
            raw.sendall(whole[:length])
            raw.shutdown(socket.SHUT_WR)
            with pytest.raises(UnavailableError, match="to the test: the other side closed it"):
                connection.receive()


CHECKED = Rows(1, 0, 1, COLUMNS, nbytes=128, checked=True)


def with_check(body: bytes) -> bytes:
    return body + data_messages.check_bytes(data_messages.checksum([body]))


def flip_bit(whole: bytes, bit: int) -> bytes:
    damaged = bytearray(whole)
    damaged[bit // 8] ^= 1 << bit % 8
    return bytes(damaged)


def test_a_bit_that_flips_in_a_body_costs_one_frame() -> None:
    whole = frame(CHECKED, with_check(BODY))
    ahead = len(whole) - len(with_check(BODY))
    raw, connection = raw_pair(client=True)
    with raw, connection:
        for bit in range(8 * ahead, 8 * len(whole), 7):
            raw.sendall(flip_bit(whole, bit) + frame(Done(1)))
            assert connection.receive() == (CHECKED, None)
            assert connection.receive() == (Done(1), None)
        raw.sendall(whole)
        assert connection.receive()[1] is not None


def frame_from_a_worker(size: int) -> bytes:
    raw, worker = raw_pair(client=False, checks=True)

    def send() -> None:
        with worker:
            worker.send_rows(1, 0, rows_of(size, 7))

    with raw:
        sender = in_thread(send)
        whole = b"".join(iter(lambda: raw.recv(1 << 20), b""))
        sender.join()
    return whole


@pytest.mark.parametrize("size", [100, SLICE, SLICE + SLICE // 2, 2 * SLICE, 5 * SLICE + 1])
def test_a_worker_sends_the_checksum_of_every_byte(size: int) -> None:
    whole = frame_from_a_worker(size)
    raw, client = raw_pair(client=True)
    with raw, client:
        for bit in [-1, -32, -33, -72, -8 * size // 2, -8 * size]:
            sender = in_thread(raw.sendall, flip_bit(whole, bit) + whole)
            rows, columns = client.receive()
            assert isinstance(rows, Rows)
            assert columns is None
            _, columns = client.receive()
            assert columns is not None
            assert (columns[0] == 7).all()
            sender.join()


def test_damaged_bytes_are_not_uncompressed() -> None:
    squeezed = Compressor(COMPRESS_ALWAYS).compress([memoryview(bytes(6016))], 6016)
    body = bytes(squeezed[1][0])
    columns, _ = pack_columns(rows_of(6000))
    rows = Rows(1, 0, 1, columns, nbytes=6016, packed=squeezed[0], checked=True)
    whole = frame(rows, with_check(body))
    raw, connection = raw_pair(client=True)
    with raw, connection:
        raw.sendall(flip_bit(whole, -33) + whole)
        assert connection.receive() == (rows, None)
        assert connection.receive()[1] is not None


def test_a_bit_that_flips_before_the_body_ends_the_connection() -> None:
    whole = frame(CHECKED, with_check(BODY))
    for bit in range(8 * (len(whole) - len(with_check(BODY)))):
        check_refused(flip_bit(whole, bit), "arrived damaged|not the head of a frame")


def test_only_receive_reports_a_damaged_head_behind_a_message() -> None:
    """Both arrive at once, so the head is there when a reader asks whether more has come."""
    raw, connection = raw_pair(client=True)
    with raw, connection:
        raw.sendall(frame(Done(1)) + flip_bit(frame(Done(2)), 11))
        assert connection.receive()[0] == Done(1)
        assert connection.pending()
        with pytest.raises(DataLossError, match="head of a frame"):
            connection.receive()


def test_a_worker_says_why_it_ends_a_connection() -> None:
    raw, connection = raw_pair(client=False)
    with raw, connection:
        raw.sendall(flip_bit(frame(Fetch(1, 2, 3, 4)), 8 * data_messages.HEAD_SIZE))
        with pytest.raises(DataLossError, match="a message of .* bytes arrived damaged"):
            connection.receive()
        said = raw.recv(1000)
        assert raw.recv(1000) == b""
    closing = data_messages.decode_message(
        data_messages.decoder_of_client, said[data_messages.HEAD_SIZE :]
    )
    assert isinstance(closing, Closing)
    assert "arrived damaged" in closing.reason


@examples(200)
@given(data=st.binary(max_size=400), client=st.booleans())
def test_random_bytes_end_a_connection(data: bytes, client: bool) -> None:
    raw, connection = raw_pair(client)
    with raw, connection:
        raw.sendall(data)
        raw.shutdown(socket.SHUT_WR)
        with pytest.raises((DataLossError, UnavailableError), match="data connection"):
            connection.receive()


@examples(200)
@given(data=st.data())
def test_damaged_frames_are_messages_or_an_end(data: st.DataObject) -> None:
    mark = Mark(1, b"s")
    whole = bytearray(
        frame(Done(1))
        + frame(Rows(1, 0, 1, COLUMNS, nbytes=128, mark=mark), BODY)
        + frame(Failed(1, 1, "ValueError", "text"))
    )
    for _ in range(data.draw(st.integers(1, 3))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    raw, connection = raw_pair(client=True)
    with raw, connection:
        raw.sendall(whole)
        raw.shutdown(socket.SHUT_WR)
        with pytest.raises((DataLossError, UnavailableError), match="data connection"):
            receive_all(connection)


@pytest.mark.parametrize("mapped", [False, True])
def test_what_stops_in_the_middle_is_not_waited_for(mapped: bool) -> None:
    """The network drops all packets, and neither end gets a signal."""
    whole = frame(Rows(1, 0, 1, COLUMNS, nbytes=128), BODY)
    for length in (5, 40, len(whole) - 1):
        raw, connection = raw_pair(client=True, mapped=MappedSlabs() if mapped else None)
        connection._channel.set_receive_timeout(0.01)
        with raw, connection:
            raw.sendall(whole[:length])
            with pytest.raises(DeadlineExceededError, match="to the test: the network carries no"):
                connection.receive()
