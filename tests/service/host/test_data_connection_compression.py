"""Compression of elements on their way."""

import os

import numpy as np
import pytest

from penstock.service.host.data_connection import COMPRESS_AUTO, Compressor
from penstock.service.protocol.data_messages import Rows
from tests.service.host.wire_peers import (
    chunk,
    open_link,
    rows_of,
)


def test_compressed_rows() -> None:
    with open_link("tcp", "SNAPPY") as (client, worker):
        worker.send_rows(1, 0, rows_of(300_000, 3))
        message, columns = client.receive()
        assert isinstance(message, Rows)
        assert message.packed == "lz4"
        assert columns is not None
        assert (columns[0] == 3).all()  # type: ignore[attr-defined]
        worker.send_rows(1, 0, rows_of(100))
        assert client.receive()[0].packed == ""  # type: ignore[union-attr]
        noise = np.random.default_rng(1).integers(0, 256, (1, 50_000), np.uint8)
        worker.send_rows(1, 0, chunk(noise))
        message, columns = client.receive()
        assert message.packed == ""  # type: ignore[union-attr]
        assert columns is not None
        np.testing.assert_array_equal(columns[0], noise)  # type: ignore[arg-type]


@pytest.mark.parametrize("asked", [None, "AUTO"])
def test_nothing_is_compressed_on_one_machine(asked: str | None) -> None:
    with open_link("tcp", asked) as (client, worker):
        worker.send_rows(1, 0, rows_of(300_000))
        assert client.receive()[0].packed == ""  # type: ignore[union-attr]


def test_auto_compresses_where_the_network_is_slow_and_it_helps() -> None:
    compressor = Compressor(COMPRESS_AUTO)
    zeros, size = [memoryview(bytes(1_000_000))], 1_000_000
    noise = [memoryview(os.urandom(1_000_000))]
    assert compressor.compress(zeros, size)[0] == ""
    compressor.learn(noise, size, 1.0)
    assert compressor.compress(zeros, size)[0] == ""
    compressor.learn(zeros, size, 1e-5)
    assert compressor.compress(zeros, size)[0] == ""
    compressor.learn(zeros, size, 1.0)
    found = [compressor.compress(zeros, size)[0] for _ in range(100)]
    assert found.count("lz4") == 99, "one of them is sent as it is, to measure again"
