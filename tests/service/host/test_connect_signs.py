"""What heartbeats of a reader say about its bottleneck."""

import pytest

from penstock.data import Dataset
from penstock.data.experimental import service
from penstock.delivery.delivery_stream import DELIVERY
from penstock.engine.figures import Figures, WorkerFigures
from penstock.engine.meters import Meters
from penstock.service.host.connect import ReaderSigns, find_slowest, measure_delivery
from penstock.service.protocol.messages import UNKNOWN_BOTTLENECK, Bottleneck
from tests.integration.clusters import Cluster, until


def rows_of(source: float, function: float, batch: float) -> list[Figures]:
    """The figures of a pipeline, with the seconds that each operator needs by itself."""
    return [
        Figures("batch", "", 0, seconds=source + function + batch),
        Figures("map", "decode at t.py:1", 1, seconds=source + function),
        Figures("records", "", 2, seconds=source),
    ]


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        ((3.0, 1.0, 0.0), ("source", "records")),
        ((1.0, 3.0, 0.0), ("function", "map(decode at t.py:1)")),
        ((1.0, 0.5, 2.0), ("operator", "batch")),
        ((0.0, 0.0, 0.0), ("", "")),
    ],
)
def test_the_operator_with_the_most_time_of_its_own(
    seconds: tuple[float, float, float], expected: tuple[str, str]
) -> None:
    assert find_slowest(rows_of(*seconds)) == expected
    assert find_slowest([]) == ("", "")


def test_a_long_name_is_cut() -> None:
    _, name = find_slowest([Figures("map", "f" * 1000, 0, seconds=1.0)])
    assert len(name) == 120


def test_what_was_delivered_is_counted_once() -> None:
    meters, figures = Meters(), WorkerFigures()
    signs = ReaderSigns(meters, figures)
    assert signs.take() == UNKNOWN_BOTTLENECK
    meters.of_stage(DELIVERY).record(1, 8, 5.0)
    plan = meters.of(Dataset.range(1)._plan)
    assert plan is not None
    plan.record(1, 8, 2.0)
    figures.add_report("w", rows_of(1.0, 3.0, 0.0))
    assert signs.take() == Bottleneck("function", "map(decode at t.py:1)", 3.0)
    assert signs.take() == Bottleneck("function", "map(decode at t.py:1)", 0.0)
    plan.record(1, 8, 9.0)  # By a thread that runs ahead.
    assert measure_delivery(meters) == 0.0


def square(x: int) -> int:
    return sum(x for _ in range(2000))


def test_the_status_names_the_slowest_operator() -> None:
    with Cluster(1) as cluster:
        batches = iter(Dataset.range(10**6).map(square).apply(cluster.distribute()))
        status = until(
            lambda: (
                (next(batches) >= 0 and (now := service.status(cluster.target)))
                and now["jobs"][0]["slowest"]
                and now
            )
        )
        batches.close()
    assert status["jobs"][0]["slowest"].startswith("map(square at test_connect_signs.py:")
