"""Networks that damage what they carry, or carry nothing: readers go on, and say what is wrong."""

import logging
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import numpy as np
import pytest

from penstock.data import Dataset
from tests.integration.chaos.cluster import free_port
from tests.integration.chaos.proxy import Proxy
from tests.integration.clusters import Cluster


@contextmanager
def cluster_behind_proxies(workers: int, **config: object) -> Iterator[tuple[Cluster, list[Proxy]]]:
    """A cluster in which only the proxies know where the workers hand out data."""
    with ExitStack() as stack:
        cluster = stack.enter_context(Cluster(0, **config))
        proxies = []
        for _ in range(workers):
            port = free_port()
            proxies.append(Proxy(port))
            stack.callback(proxies[-1].close)
            where = f"localhost:{proxies[-1].port}"
            cluster.workers.append(cluster.join(port=port, worker_address=where))
        yield cluster, proxies


@pytest.mark.parametrize("compression", [None, "SNAPPY"])
def test_flipped_bits_change_no_element(
    compression: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    rows = np.random.default_rng(1).integers(0, 4, (400, 50_000), dtype=np.uint8)
    with cluster_behind_proxies(1) as (cluster, [proxy]), caplog.at_level(logging.WARNING):
        way = cluster.distribute(data_transfer_protocol="tcp", compression=compression)
        iterator = iter(Dataset.from_tensor_slices(rows).apply(way))
        found = [next(iterator)]
        proxy.damage(every=500_000)
        found += list(iterator)
    assert proxy.flipped
    assert len(found) == len(rows)
    assert all(np.array_equal(*pair) for pair in zip(found, rows, strict=True))
    assert "arrived damaged; they are asked for again" in caplog.text
