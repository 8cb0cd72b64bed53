"""Networks that damage data, or carry none: readers continue and report it."""

import logging
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import numpy as np
import pytest

from penstock.data import Dataset
from penstock.errors import UnavailableError
from tests.integration.chaos.cluster import free_port
from tests.integration.chaos.proxy import Proxy
from tests.integration.clusters import Cluster, until


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


def test_a_worker_behind_a_stalled_network_is_left_for_another(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The dispatcher hears of both workers, and both connections stay open."""
    with (
        cluster_behind_proxies(2, worker_timeout_ms=1000) as (cluster, proxies),
        caplog.at_level(logging.WARNING),
    ):
        numbers = Dataset.range(300).map(lambda x: np.full(10_000, x))
        way = cluster.distribute(data_transfer_protocol="tcp", max_outstanding_requests=8)
        iterator = iter(numbers.apply(way))
        found = []
        while proxies[0].answered < 100_000:
            found.append(int(next(iterator)[0]))
        proxies[0].stall()
        found += [int(x[0]) for x in iterator]
        proxies[0].flow()
    assert found == list(range(300))
    # Which of the two depends on whether it stalled within a frame.
    assert "it has said nothing for" in caplog.text or "carries nothing" in caplog.text
    assert "other workers (1 are connected) are asked for what it owes" in caplog.text


def test_a_reader_that_reaches_no_worker_says_so_and_gives_up(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("penstock.service.protocol.timing.WAIT_WARNING", 0.2)
    monkeypatch.setattr("penstock.service.protocol.timing.WAIT_LIMIT", 1.0)
    with (
        cluster_behind_proxies(1, worker_timeout_ms=400) as (cluster, [proxy]),
        caplog.at_level(logging.WARNING),
    ):
        way = cluster.distribute(data_transfer_protocol="tcp", max_outstanding_requests=1)
        iterator = iter(Dataset.range(50).apply(way))
        next(iterator)
        proxy.stall()
        where = f"worker localhost:{proxy.port}"
        with pytest.raises(
            UnavailableError,
            match=rf"waited . s, and no worker can be reached from here \({where} \(tcp\): it has "
            "said nothing",
        ):
            list(iterator)
    assert "s: no worker can be reached from here" in caplog.text


HANGS = threading.Event()


def hang(x: int) -> int:
    if x == 5:
        HANGS.wait()
    return x


@pytest.mark.parametrize("calls", [None, 2])
def test_a_function_that_hangs_is_named(
    calls: int | None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("penstock.service.protocol.timing.WAIT_WARNING", 0.3)
    HANGS.clear()
    with Cluster(1) as cluster, caplog.at_level(logging.WARNING):
        numbers = Dataset.range(9).map(hang, num_parallel_calls=calls)
        iterator = iter(numbers.apply(cluster.distribute(max_outstanding_requests=1)))
        found: list[int] = []
        reading = threading.Thread(target=lambda: found.extend(map(int, iterator)))
        reading.start()
        line = hang.__code__.co_firstlineno
        until(lambda: f"s for element 5, in hang at test_networks.py:{line} (worker" in caplog.text)
        HANGS.set()
        reading.join()
    assert found == list(range(9))
    assert "said nothing" not in caplog.text
