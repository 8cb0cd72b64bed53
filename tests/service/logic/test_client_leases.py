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
    requests.apply_reply(nothing, left=0, now=1.0)
    assert requests.want(left=0, workers=1, now=1.0 + 7.9 * timing.LEASED_WORK) == 0
    assert requests.want(left=0, workers=1, now=1.0 + 8.0 * timing.LEASED_WORK) == 80


def test_slow_elements_that_arrive_together_do_not_make_a_reader_lease_many() -> None:
    """Another reader would wait while a worker makes them."""
    requests = LeaseRequests(FEW_CLIENTS)
    for number in range(100):
        requests.pace.note(1, now=0.05 * number)
    for number in range(3):
        requests.pace.note(1, now=0.05 * 99 + 1e-5 * number)
    assert 0 < requests.want(left=0, workers=1, now=5.0) <= 6


def test_a_pause_of_the_user_does_not_slow_leases_down() -> None:
    requests, now = LeaseRequests(FEW_CLIENTS), 0.0
    for step in [0.001] * 1000 + [60.0] + [0.001] * 500:
        now += step
        requests.pace.note(1, now)
    assert 90 <= requests.want(left=0, workers=1, now=now) <= 110


def test_a_reader_that_waits_for_leases_asks_for_more_at_once() -> None:
    requests, now = LeaseRequests(FEW_CLIENTS), 0.0
    for want in (1, 1, 2, 4):  # Its user could consume more, and each reply takes a second.
        assert requests.want(left=0, workers=0, now=now) == want
        requests.apply_reply(LeaseReply((Grant(StreamRange(0, 0, want)),)), left=0, now=now)
        requests.pace.note(want, now)
        now += 1.0
    assert requests.want(left=1, workers=0, now=now) == 8
    requests.apply_reply(LeaseReply((Grant(StreamRange(0, 0, 8)),)), left=1, now=now)
    assert requests.want(left=0, workers=0, now=now) == 4
