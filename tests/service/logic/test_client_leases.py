"""When a reader asks for leases, and for how many elements."""

from penstock.service.logic.client import LeaseRequests
from penstock.service.protocol import timing
from penstock.service.protocol.messages import (
    FEW_CLIENTS,
    Grant,
    Intervals,
    LeaseReply,
    StreamRange,
)


def test_readers_that_share_a_job_keep_its_workers_busy_together() -> None:
    requests = LeaseRequests(Intervals(readers=10))
    assert requests.want(left=0, workers=100, now=0.0) == 20


def test_a_reader_among_many_leases_for_longer_and_asks_less_often() -> None:
    requests = LeaseRequests(FEW_CLIENTS)
    requests.pace.note(100, now=0.0)
    requests.pace.note(100, now=1.0)
    assert requests.want(left=0, workers=1, now=1.0) == 10
    nothing = LeaseReply(retry=timing.LEASE_RETRY, intervals=Intervals(leased_work=8.0))
    requests.hear(nothing, left=0, now=1.0)
    assert requests.want(left=0, workers=1, now=1.0 + 7.9 * timing.LEASED_WORK) == 0
    assert requests.want(left=0, workers=1, now=1.0 + 8.0 * timing.LEASED_WORK) == 80


def test_a_reader_that_waits_for_leases_asks_for_more_at_once() -> None:
    requests, now = LeaseRequests(FEW_CLIENTS), 0.0
    for want in (1, 1, 2, 4):  # Its user could consume more, and each reply takes a second.
        assert requests.want(left=0, workers=0, now=now) == want
        requests.hear(LeaseReply((Grant(StreamRange(0, 0, want)),)), left=0, now=now)
        requests.pace.note(want, now)
        now += 1.0
    assert requests.want(left=1, workers=0, now=now) == 8
    requests.hear(LeaseReply((Grant(StreamRange(0, 0, 8)),)), left=1, now=now)
    assert requests.want(left=0, workers=0, now=now) == 4
