"""Figures of a data service: waits, pauses and counts, each by itself; prints JSON.

Servers are processes of their own, started and stopped here.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.peers import services
from benchmarks.peers.elements import busy
from penstock.data import Dataset
from penstock.data.experimental import service

TRAINERS = 8


def seconds(work: Callable[[], Any]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def first_element(url: str) -> None:
    dataset = Dataset.range(1000).map(lambda x: x + 1)
    with iter(dataset.apply(service.distribute("distributed_epoch", url))) as iterator:
        next(iterator)


def first_elements(times: int) -> dict[str, float]:
    """From the call of `distribute` to the first element, of a service that runs already."""
    url = services.running()
    fresh = seconds(lambda: first_element(url))
    return {
        "first": fresh,
        "again": median(seconds(lambda: first_element(url)) for _ in range(times)),
    }


def local(times: int) -> dict[str, float]:
    """From the call to the first element of processes that have to start."""
    return {"local": median(seconds(lambda: first_element("local://2")) for _ in range(times))}


def pause(times: int) -> dict[str, float]:
    """The longest gap between two elements when one of two workers is killed."""
    return {"pause": max(_pause() for _ in range(times)), "gap": _pause(kill=False)}


def _pause(kill: bool = True) -> float:
    url = services.dispatcher()
    services.start_server("worker", "--dispatcher", url)
    victim = services._SERVERS[-1]
    services.start_server("worker", "--dispatcher", url)
    dataset = Dataset.range(1200).map(busy)
    iterator = iter(dataset.apply(service.distribute("distributed_epoch", url)))
    for _ in islice(iterator, 200):
        pass
    if kill:
        victim.kill()
    last, longest = time.perf_counter(), 0.0
    for _ in iterator:
        now = time.perf_counter()
        longest, last = max(longest, now - last), now
    return longest


def sharing(n: int) -> dict[str, float]:
    """How often the function is called for one trainer, and for eight that share a cache."""
    return {"one": _calls(1, n), "many": _calls(TRAINERS, n), "elements": n}


def _calls(trainers: int, n: int) -> int:
    name = f"sharing-{uuid.uuid4().hex}"
    with tempfile.TemporaryDirectory() as folder:
        log = str(Path(folder) / "calls")

        def count_call(number: Any) -> Any:
            file = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
            os.write(file, b".")
            os.close(file)
            return number

        dataset = Dataset.range(1 << 40).map(count_call)
        iterators = [
            iter(
                dataset.apply(
                    service.distribute(
                        "distributed_epoch",
                        services.running(),
                        job_name=name,
                        max_outstanding_requests=64,
                        cross_trainer_cache=service.CrossTrainerCache(trainer),
                    )
                )
            )
            for trainer in range(trainers)
        ]
        found = [[next(iterator) for iterator in iterators] for _ in range(n)]
        if any(len(set(row)) > 1 for row in found):
            raise SystemExit("sharing: trainers of one cache got different elements")
        for iterator in iterators:
            iterator.close()
        return os.stat(log).st_size


def leases(length: float) -> dict[str, float]:
    """Answers per second of a dispatcher that keeps a journal, to readers that only ask."""
    with tempfile.TemporaryDirectory() as folder:
        url = services.dispatcher("--work-dir", folder)
        services.start_server("worker", "--dispatcher", url)
        address = url.removeprefix("grpc://")
        clients = [_lessee(address, url, number) for number in range(4)]
        with ThreadPoolExecutor(len(clients)) as pool:
            counts = list(pool.map(partial(_ask, until=time.perf_counter() + length), clients))
        services._SERVERS[-2].kill()
        services._SERVERS[-2].wait()
    return {"leases": sum(counts) / length}


def _lessee(address: str, url: str, number: int) -> Callable[[int], Any]:
    from penstock.service.host.control_connection import ControlClient
    from penstock.service.host.security import Security
    from penstock.service.host.services import session
    from penstock.service.protocol.messages import JobOptions, Lease, OpenIteration, StreamRange

    register = service.register_dataset(url, Dataset.range(1 << 40), dataset_id="numbers")
    talk = session(address)
    client = f"lessee-{number}"
    mode = int(service.ShardingPolicy.DYNAMIC)
    talk.call(
        OpenIteration(
            client, "leases", 0, register.decode(), JobOptions(mode), 1, (0,), talk.own_host
        )
    )
    control = ControlClient(address, Security.of_client(address))
    held: list[StreamRange] = []

    def ask(count: int) -> None:
        answer: Any = control.call(Lease(client, count, 100, tuple(held)))
        held[:] = [grant.range for grant in answer.grants]

    return ask


def _ask(ask: Callable[[int], Any], until: float) -> int:
    count = 0
    while time.perf_counter() < until:
        count += 1
        ask(count)
    return count


def main(quick: bool) -> None:
    found: dict[str, float] = {}
    try:
        found |= first_elements(3 if quick else 10)
        found |= local(1 if quick else 3)
        found |= pause(1 if quick else 3)
        found |= sharing(500 if quick else 2000)
        found |= leases(1.0 if quick else 4.0)
    finally:
        for server in services._SERVERS:
            server.kill()
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1:] == ["quick"])
