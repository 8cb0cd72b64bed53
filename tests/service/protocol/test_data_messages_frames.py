"""Frames: heads and messages, and bytes that are neither."""

import contextlib
import struct
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.engine.formats.blocks import crc32c
from penstock.engine.processes.chunk_memory import Slab
from penstock.errors import DataLossError, InvalidArgumentError
from penstock.service.protocol.data_messages import (
    HEAD_SIZE,
    MAX_BODY,
    MAX_MESSAGE,
    MESSAGE,
    SLAB,
    CloseTask,
    Closing,
    Done,
    Failed,
    Fetch,
    Impossible,
    Mark,
    OpenTask,
    Release,
    Rows,
    check_bytes,
    checksum,
    decode_message,
    decoder_of_client,
    decoder_of_worker,
    encode,
    frame,
    frame_head,
    is_undamaged,
    read_head,
    slab_decoder,
)
from penstock.service.protocol.messages import Work

MARK = Mark(7, b"state")
TO_WORKER = [
    OpenTask(1, Work("digest", "job", "split", 2, 3, 4, (5, 6))),
    Fetch(1, 2, 3, 4, MARK),
    Fetch(1, 2, 3, 4),
    Release((1, 2, 3)),
    CloseTask(9),
]
TO_CLIENT = [
    Rows(1, 2, 3, b"columns", 4, 5, "lz4", MARK, 0.5, "(.,.)", True),
    Failed(1, 2, "ValueError", "message", "Traceback"),
    Done(1),
    Done(1, 100),
    Impossible(1, "NotFoundError", "message", True),
    Closing("a message arrived damaged"),
]


def seal_head(head: bytes) -> bytes:
    """A head of these values, valid or not, with its checksum."""
    return head + crc32c(head).to_bytes(4, "little")


@pytest.mark.parametrize("message", TO_WORKER, ids=repr)
def test_messages_to_the_worker(message: Any) -> None:
    assert decode_message(decoder_of_worker, encode(message)) == message
    with pytest.raises(DataLossError, match="what arrived is not a message"):
        decode_message(decoder_of_client, encode(message))


@pytest.mark.parametrize("message", TO_CLIENT, ids=repr)
def test_messages_to_the_client(message: Any) -> None:
    assert decode_message(decoder_of_client, encode(message)) == message
    with pytest.raises(DataLossError, match="what arrived is not a message"):
        decode_message(decoder_of_worker, encode(message))


def test_slabs() -> None:
    slab = Slab(1, 4096, 8, (0,))
    assert decode_message(slab_decoder, encode(slab)) == slab


CHECKS = st.integers(0, 2**32 - 1)


@given(
    st.sampled_from([MESSAGE, SLAB]), st.integers(0, MAX_MESSAGE), st.integers(0, MAX_BODY), CHECKS
)
def test_heads(kind: int, message: int, body: int, check: int) -> None:
    head = frame_head(kind, message, body, check)
    assert len(head) == HEAD_SIZE
    assert read_head(head) == (kind, message, body, check)


@given(st.integers(0, MAX_MESSAGE), st.integers(0, MAX_BODY), CHECKS)
def test_a_head_with_any_bit_flipped_is_noticed(message: int, body: int, check: int) -> None:
    head = frame_head(MESSAGE, message, body, check)
    for bit in range(8 * HEAD_SIZE):
        damaged = bytearray(head)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(DataLossError, match="not the head of a frame|arrived damaged"):
            read_head(damaged)


@given(st.lists(st.binary(max_size=40)), st.sampled_from([1, 1000]))
def test_a_checksum_does_not_depend_on_how_bytes_are_cut(parts: list[bytes], times: int) -> None:
    large = [part * times for part in parts]
    whole = b"".join(large)
    assert checksum(large) == checksum([memoryview(bytearray(whole))]) == crc32c(whole)


@given(st.binary(max_size=40))
def test_a_body_and_its_checksum_with_any_bit_flipped_are_damaged(body: bytes) -> None:
    whole = bytearray(body + check_bytes(checksum([body])))
    assert is_undamaged(checksum([whole]))
    for bit in range(8 * len(whole)):
        whole[bit // 8] ^= 1 << bit % 8
        assert not is_undamaged(checksum([whole]))
        whole[bit // 8] ^= 1 << bit % 8


def test_the_checksum_is_the_one_of_the_standard() -> None:
    """The test vectors of RFC 3720, B.4."""
    assert check_bytes(checksum([bytes(32)])) == bytes.fromhex("aa36918a")
    assert check_bytes(checksum([b"\xff" * 32])) == bytes.fromhex("43aba862")
    assert check_bytes(checksum([bytes(range(32))])) == bytes.fromhex("4e79dd46")


def test_a_frame_has_the_checksum_of_its_message() -> None:
    head, data = frame(Done(1), 7)
    assert read_head(head) == (MESSAGE, len(data), 7, crc32c(data))


@pytest.mark.parametrize("sizes", [(MAX_MESSAGE + 1, 0), (0, MAX_BODY + 1)])
def test_what_is_too_large_is_not_sent(sizes: tuple[int, int]) -> None:
    with pytest.raises(InvalidArgumentError, match="cannot be sent at once .* make the elements"):
        frame_head(MESSAGE, *sizes)


def test_what_claims_to_be_too_large_is_not_read() -> None:
    with pytest.raises(DataLossError, match="larger than any can be"):
        read_head(seal_head(frame_head(MESSAGE, 0)[:8] + b"\xff" * 12))


@pytest.mark.parametrize(
    "head", [b"GET / HTTP/1.1\r\nHost: x", bytes(24), seal_head(b"\xf0P\x02" + bytes(17))]
)
def test_what_is_no_head(head: bytes) -> None:
    with pytest.raises(DataLossError, match="is not the head of a frame"):
        read_head(head)


@given(st.binary(min_size=HEAD_SIZE, max_size=HEAD_SIZE))
def test_random_bytes_are_no_head(data: bytes) -> None:
    with pytest.raises(DataLossError, match="the head of a frame"):
        read_head(data)


def sizes_around(limit: int, bits: int) -> st.SearchStrategy[int]:
    return st.integers(0, limit) | st.integers(limit - 1, limit + 1) | st.integers(0, 2**bits - 1)


@given(sizes_around(MAX_MESSAGE, 32), sizes_around(MAX_BODY, 64))
def test_heads_of_any_sizes_stay_in_bounds(message: int, body: int) -> None:
    head = seal_head(frame_head(MESSAGE, 0)[:4] + struct.pack("<IQI", message, body, 0))
    if message <= MAX_MESSAGE and body <= MAX_BODY:
        assert read_head(head) == (MESSAGE, message, body, 0)
    else:
        with pytest.raises(DataLossError, match="larger than any can be"):
            read_head(head)


@given(st.binary(max_size=200))
def test_random_bytes_are_messages_or_refused(data: bytes) -> None:
    for decoder in (decoder_of_client, decoder_of_worker, slab_decoder):
        with contextlib.suppress(DataLossError):
            decode_message(decoder, data)


@given(st.sampled_from(TO_WORKER + TO_CLIENT), st.data())
def test_damaged_messages_are_messages_or_refused(message: Any, data: st.DataObject) -> None:
    whole = encode(message)
    at = data.draw(st.integers(0, len(whole) - 1))
    damaged = whole[:at] + bytes([data.draw(st.integers(0, 255))]) + whole[at + 1 :]
    for decoder in (decoder_of_client, decoder_of_worker):
        with contextlib.suppress(DataLossError):
            assert isinstance(decode_message(decoder, damaged), msgspec.Struct)


def test_deep_messages_are_refused() -> None:
    with pytest.raises(DataLossError, match="what arrived is not a message"):
        decode_message(decoder_of_worker, b"\x81\xa1x" * 100_000)
