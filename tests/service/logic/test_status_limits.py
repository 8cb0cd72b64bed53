"""What limits a job, and what would help, from measured shares of time."""

import pytest

from penstock.service.logic.status import JobSigns, find_limit
from penstock.service.protocol.messages import Bottleneck

DECODE = Bottleneck("function", "map(decode at t.py:1)")
SIGNS = JobSigns(
    readers=1,
    measured=True,
    missing=(),
    finished=False,
    workers=2,
    lag=0.5,
    busy=0.9,
    wanted=4,
    element_bytes=150_000.0,
)


@pytest.mark.parametrize(
    ("changes", "place", "words"),
    [
        ({"finished": True, "readers": 0}, "finished", "read to its end"),
        ({"readers": 0}, "no readers", "No program reads it"),
        ({"missing": (1, 3)}, "consumers", "missing consumers: 1, 3."),
        ({"missing": tuple(range(9))}, "consumers", "6, 7, ..."),
        ({"workers": 0}, "no workers", "penstock worker --dispatcher"),
        ({"measured": False}, "unknown", "not reported their speed"),
        ({"lag": 0.003}, "program", "0.3% of their time: nothing to gain"),
        ({}, "workers", "Add workers: 4 would keep all readers busy, 2 are here."),
        ({"workers": 1}, "workers", "1 is here"),
        (
            {"slowest": DECODE},
            "function",
            "theirs, most of it in map(decode at t.py:1). Add",
        ),
        ({"slowest": DECODE, "wanted": 1}, "function", "Make map(decode at t.py:1) faster, or"),
        ({"slowest": Bottleneck("source", "range")}, "source", "Or make range faster."),
        ({"slowest": Bottleneck("operator", "batch")}, "workers", "Or make batch faster."),
        ({"lag": 0.01, "delivering": 0.7}, "device", "devices for 70% of the time"),
        ({"lag": 0.01, "delivering": 0.3}, "program", "nothing to gain"),
        ({"wanted": 99}, "workers", "Add workers: more than 8 would keep all readers busy"),
        ({"wanted": 2}, "workers", "Make the source and the functions faster, or add a worker."),
        ({"busy": 0.1}, "wire", "only 10% of theirs: elements of 150 KB are on their way"),
        ({"busy": 0.1, "settled": False}, "unknown", "just begun. Look again in a few seconds."),
        ({"settled": False}, "workers", "Add workers: 4"),
        ({"busy": 0.1, "element_bytes": 7.0}, "wire", "elements of 7 B"),
        ({"busy": 0.1, "element_bytes": 1.5e6}, "wire", "elements of 1.5 MB"),
        ({"busy": 0.1, "element_bytes": 2e9}, "wire", "elements of 2.0 GB"),
    ],
)
def test_the_first_reason_that_applies_is_named(
    changes: dict[str, object], place: str, words: str
) -> None:
    found = find_limit(SIGNS._replace(**changes))
    assert found.place == place
    assert words in found.advice
