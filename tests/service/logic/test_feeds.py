"""Feeds: every ordinal is requested once; streams end; some ordinals need no request."""

from typing import Any

import pytest

from penstock.errors import DataLossError, NotFoundError, UnavailableError
from penstock.service.logic.feeds import Failure, Feed, Limits
from penstock.service.logic.fetching import Fetcher
from penstock.service.logic.orders import RoundRobinOrder, SequentialOrder
from penstock.service.protocol.data_messages import Done


class Rows(list):
    """Elements that are their own ordinals."""

    nbytes = 8

    def rows(self, start: int, stop: int) -> "Rows":
        return Rows(self[start:stop])


def rows(start: int, stop: int) -> Rows:
    return Rows(range(start, stop))


def test_a_stream_has_one_length() -> None:
    feed = Feed(3)
    feed.arrive(0, rows(0, 5))
    with pytest.raises(DataLossError, match="stream 3 had 5 elements and, made again elsewhere, 4"):
        feed.end(4)
    feed.end(6)
    with pytest.raises(DataLossError, match="had 6 elements and, made again elsewhere, 7"):
        feed.end(7)
    with pytest.raises(DataLossError, match="seed it"):
        feed.arrive(5, rows(5, 7))


def test_a_pledge_is_handed_out_next_and_counts_as_handed_out() -> None:
    feed = Feed(0)
    feed.arrive(4, rows(4, 6))
    feed.pledge()
    feed.arrive(0, rows(0, 2))
    assert feed.state()[:3] == [0, 0, [[4, 6]]]
    assert feed.take(9, anywhere=True) == (4, [4, 5])
    assert feed.pledged is None
    feed.pledge()
    assert feed.state()[:3] == [0, 2, [[4, 6]]]
    assert feed.take(1, anywhere=True) == (0, [0])
    assert feed.state()[:3] == [0, 1, [[4, 6]]]


def test_a_stream_that_may_be_short_is_asked_for_once() -> None:
    reader = Fetcher(SequentialOrder(2), Limits(), bound=True)
    reader.sizes.record(1, 8, 0.0)
    reader.join("w")
    reader.asks()
    reader.lose("w")
    reader.join("v")
    asked = reader.asks()
    assert [(ask.feed.stream, ask.start) for ask in asked] == [(0, 0), (1, 0)]
    reader.arrive(asked[0].request, 0, rows(0, 1))
    reader.done(Done(asked[0].request))
    # The stream has moved, so the request for the next stream does not count.
    starts = [(ask.feed.stream, ask.start) for ask in reader.asks()]
    assert starts == [(0, 1), (0, 3), (0, 5), (0, 7)]


def test_what_no_worker_can_make_waits_for_new_workers() -> None:
    reader = Fetcher(SequentialOrder(-1), Limits(elements=1), bound=True)
    reader.join("w")
    [asked] = reader.asks()
    reader.expected = ["u", "v"]
    reader.refuse(asked.request, NotFoundError("no such file"), elsewhere=True)
    for _ in range(9):
        assert reader.asks() == []
    assert reader.order.state(True)["next"] == 1, "no others are begun meanwhile"
    reader.join("v")
    [asked] = reader.asks()
    assert asked.worker == "v"
    reader.refuse(asked.request, UnavailableError("about to stop"), elsewhere=True)
    for _ in range(9):
        assert reader.asks() == []
    assert reader.order.state(True)["next"] == 1, "nor while one who is here stops"
    reader.join("v")
    assert [ask.worker for ask in reader.asks()] == ["v"]
    reader.lose("v")
    reader.expected = []
    with pytest.raises(NotFoundError, match="no such file"):
        reader.asks()


def test_a_stream_waits_for_its_own_worker_before_it_begins() -> None:
    """Otherwise the first worker would make all streams, and workers that join later none."""
    order = RoundRobinOrder(1, free=True)
    order.add(3, {0: "u", 1: "v", 2: "w"})
    reader = Fetcher(order, Limits(elements=8), bound=True, ordered=False)
    reader.join("u")
    reader.expected = ["v"]
    assert {(ask.feed.stream, ask.worker) for ask in reader.asks()} == {(0, "u"), (2, "u")}
    reader.join("v")
    reader.expected = []
    assert {(ask.feed.stream, ask.worker) for ask in reader.asks()} == {(1, "v")}


def in_turns(state: Any = None) -> RoundRobinOrder:
    order = RoundRobinOrder(32, state, free=True)
    order.add(2, {})
    return order


def free_reader() -> Fetcher:
    order = in_turns()
    return Fetcher(order, Limits(elements=4), bound=True, ordered=False)


def answer(reader: Fetcher, but: int = -1) -> None:
    """Lets a worker answer all that is asked for, except for one ordinal."""
    for ask in reader.asks():
        if ask.start != but:
            reader.arrive(ask.request, ask.start, rows(ask.start, ask.stop))
            reader.done(Done(ask.request, 6 if ask.stop >= 6 else None))


def test_what_a_state_had_pledged_comes_first() -> None:
    reader = free_reader()
    reader.join("w")
    for feed in reader.order.upcoming():
        feed.prove()
    answer(reader, but=0)
    pledge = reader.pledge()
    assert pledge == (0, 1, 2)
    assert reader.pledge() == pledge
    state = reader.order.state(True)
    again = Fetcher(in_turns(state), Limits(elements=1), True, False)
    again.promise(*pledge)
    again.join("v")
    assert again.take(5) is None
    found = []
    while not again.over:
        answer(again)
        while (taken := again.take(5)) is not None:
            found += [(taken[0].stream, taken[1] + i) for i in range(len(taken[2]))]
    assert found[0] == (0, 1)
    assert sorted(found) == [(stream, i) for stream in range(2) for i in range(6)]


def test_a_pledge_is_forgotten_with_its_order() -> None:
    reader = free_reader()
    reader.join("w")
    answer(reader)
    assert reader.pledge() is not None
    reader.restart(SequentialOrder(0))
    assert reader.pledge() is None
    assert reader.over


def test_what_no_worker_can_make_is_an_error() -> None:
    reader = Fetcher(SequentialOrder(1), Limits(), bound=True)
    for worker in ("v", "w"):
        reader.join(worker)
    [first, *_] = reader.asks()
    reader.refuse(first.request, NotFoundError("no file here"), elsewhere=True)
    [second, *_] = [ask for ask in reader.asks() if ask.worker != first.worker]
    reader.refuse(second.request, NotFoundError("no file there"), elsewhere=True)
    with pytest.raises(NotFoundError, match="no file here"):
        reader.asks()


def test_what_no_worker_can_make_is_the_failure_of_one_element() -> None:
    reader = Fetcher(SequentialOrder(1, 2), Limits(elements=1), bound=False)
    reader.join("w")
    [ask] = reader.asks()
    error = NotFoundError("never")
    reader.refuse(ask.request, error, elsewhere=False)
    taken = reader.take(4)
    assert taken is not None
    _, start, piece = taken
    assert start == ask.start
    assert isinstance(piece, Failure)
    assert piece.error is error
    assert [(ask.start, ask.stop) for ask in reader.asks()] == [(1, 2)]
    reader.refuse(99, NotFoundError("late"), elsewhere=False)


def test_a_block_for_several_trainers_waits_for_its_keeper_to_join() -> None:
    """Otherwise a trainer that connects late to the keeper would have the block made twice."""
    reader = Fetcher(SequentialOrder(1), Limits(), bound=False, kept=True)
    reader.join("b")
    reader.join("a")
    (ask,) = reader.asks()
    keeper, other = ask.worker, {"a": "b", "b": "a"}[ask.worker]

    late = Fetcher(SequentialOrder(1), Limits(), bound=False, kept=True)
    late.join(other)
    late.expected = [keeper]
    assert late.asks() == []
    late.join(keeper)
    assert [ask.worker for ask in late.asks()] == [keeper]

    alone = Fetcher(SequentialOrder(1), Limits(), bound=False, kept=True)
    alone.join(other)
    alone.expected = [keeper]
    assert alone.asks() == []
    alone.expected = []  # The keeper cannot be reached.
    assert [ask.worker for ask in alone.asks()] == [other]
