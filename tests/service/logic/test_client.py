"""Readers against simulated workers that answer late, in parts, or never."""

from __future__ import annotations

import random
from base64 import b64encode
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import (
    AbortedError,
    DataLossError,
    InvalidArgumentError,
    NotFoundError,
    UnavailableError,
)
from penstock.plan.shape import GUESS, Shape
from penstock.service.logic.client import Reading, claims_of, merge_states
from penstock.service.logic.feeds import DEPTH, NOWHERE, Ask, Failure, Feed, Limits
from penstock.service.logic.fetching import Fetcher
from penstock.service.logic.orders import LeaseOrder, RoundRobinOrder, SequentialOrder
from penstock.service.protocol.data_messages import LARGE_STATE, Done, Mark
from penstock.service.protocol.messages import (
    Grant,
    LeaseReply,
    OpenIterationReply,
    StreamInfo,
    StreamRange,
    Work,
)
from tests.effort import examples


class Elements:
    """A piece whose elements are their own addresses."""

    def __init__(self, stream: int, start: int, stop: int) -> None:
        self.stream, self.start, self.stop = stream, start, stop

    def __len__(self) -> int:
        return self.stop - self.start

    def rows(self, start: int, stop: int) -> Elements:
        return Elements(self.stream, self.start + start, min(self.stop, self.start + stop))

    @property
    def nbytes(self) -> int:
        return 100 * len(self)

    @property
    def addresses(self) -> list[tuple[int, int]]:
        return [(self.stream, ordinal) for ordinal in range(self.start, self.stop)]


class Crew:
    """Workers; each answers its requests in order, a little at a time, until it is lost."""

    def __init__(self, lengths: list[int], seed: int, workers: int = 3) -> None:
        self.lengths = lengths
        self.random = random.Random(seed)
        self.queues: dict[str, list[Ask]] = {f"w{i}": [] for i in range(workers)}
        self.most = 0
        self._names = workers

    def ask(self, asks: list[Ask]) -> None:
        for ask in asks:
            self.queues[ask.worker].append(ask)

    def step(self, reader: Fetcher, deaths: bool = True) -> None:
        if deaths and self.random.random() < 0.05:
            self.replace(reader)
        worker = self.random.choice(list(self.queues))
        if self.queues[worker]:
            self.answer(reader, self.queues[worker])

    def replace(self, reader: Fetcher) -> None:
        victim = self.random.choice(list(self.queues))
        del self.queues[victim]
        reader.lose(victim)
        self._names += 1
        self.queues[f"w{self._names}"] = []
        reader.join(f"w{self._names}")

    def answer(self, reader: Fetcher, queue: list[Ask]) -> None:
        ask = queue[0]
        length = self.lengths[ask.feed.stream]
        stop = min(ask.stop, length, ask.at + self.random.randint(1, 5))
        if ask.at < stop:
            reader.arrive(ask.request, ask.at, Elements(ask.feed.stream, ask.at, stop), 0.0)
        if stop >= min(ask.stop, length):
            queue.pop(0)
            reader.done(Done(ask.request, length if length < ask.stop else None))


def open_reply(form: str, streams: int, **more: Any) -> OpenIterationReply:
    owned = form in ("whole", "shard", "share")
    infos = tuple(StreamInfo(i) for i in range(streams)) if owned else ()
    work = Work("digest", "job", form, 0, streams, 1, (0,), **more)
    return OpenIterationReply(work, False, 1, (), infos)


def reading_of(
    form: str, lengths: list[int], ordered: bool = True, state: Any = None, most: int | None = None
) -> Reading:
    shape = Shape("split" if form == "split" else "random", len(lengths), lengths[0])
    return Reading(open_reply(form, len(lengths)), shape, Limits(elements=most), ordered, state)


def read(
    reading: Reading, crew: Crew, count: int | None = None, deaths: bool = True
) -> list[tuple[int, int]]:
    """Reads `count` elements, or all."""
    for worker in crew.queues:
        reading.fetcher.join(worker)
    got: list[tuple[int, int]] = []
    while not reading.over and (count is None or len(got) < count):
        crew.ask(reading.fetcher.asks())
        left = 1 << 30 if count is None else count - len(got)
        piece = reading.take(min(left, crew.random.randint(1, 9)), 0.0)
        if piece is None:
            crew.step(reading.fetcher, deaths)
        else:
            got += piece.addresses  # type: ignore[attr-defined]
    return got


class Parts(Crew):
    """Streams are parts of files. Some begin at a wrong place, unless the fetch names it."""

    SIZE = 1000

    def __init__(self, lengths: list[int], seed: int, wrong: set[int], files: set[int]) -> None:
        super().__init__(lengths, seed)
        self.wrong, self.files = wrong, files | {0}

    def begins(self, stream: int) -> int:
        """The first position of a record that is not before the part."""
        if stream in self.files:
            return 0
        later = (at for at in range(stream, len(self.lengths)) if self.lengths[at])
        found = next(later, len(self.lengths))
        end = next((at for at in range(stream, len(self.lengths)) if at in self.files), found + 1)
        return min(found, end) * self.SIZE + 3

    def answer(self, reader: Fetcher, queue: list[Ask]) -> None:
        ask = queue[0]
        feed, stream = ask.feed, ask.feed.stream
        wrong = feed.begin == GUESS and stream in self.wrong and stream not in self.files
        length = self.lengths[stream] + 3 * wrong
        began = self.begins(stream) if feed.begin == GUESS else feed.begin
        if feed.begin == GUESS and not length:
            began = (stream + 1) * self.SIZE
        ended = self.begins(stream + 1) or NOWHERE
        ended = ended if length or stream in self.files else began
        began, shift = (began + 7, 5) if wrong else (began, 0)
        stop = min(ask.stop, length, ask.at + self.random.randint(1, 5))
        if ask.at < stop:
            rows = Elements(stream, ask.at + shift, stop + shift)
            reader.arrive(ask.request, ask.at, rows, 0.0, began)
        if stop >= min(ask.stop, length):
            queue.pop(0)
            reader.done(Done(ask.request, length if length < ask.stop else None, began, ended))


@examples(150)
@given(
    lengths=st.lists(st.integers(0, 12), min_size=1, max_size=12),
    seed=st.integers(0, 1 << 30),
    wrong=st.sets(st.integers(1, 11)),
    files=st.sets(st.integers(1, 11)),
    data=st.data(),
)
def test_parts_that_begin_at_a_wrong_place_are_read_again(
    lengths: list[int], seed: int, wrong: set[int], files: set[int], data: st.DataObject
) -> None:
    expected = [(stream, i) for stream, n in enumerate(lengths) for i in range(n)]
    reading = reading_of("split", lengths)
    count = data.draw(st.integers(0, len(expected)))
    before = read(reading, Parts(lengths, seed, wrong, files), count)
    assert reading.fetcher._here >= 0 <= reading.fetcher._owed
    again = reading_of("split", lengths, state=reading.state())
    assert before + read(again, Parts(lengths, seed + 1, wrong, files)) == expected
    assert again.fetcher._here == again.fetcher._buffered == 0


lengths_of_streams = st.lists(st.integers(0, 70), min_size=1, max_size=20)


@examples(150)
@given(lengths=lengths_of_streams, seed=st.integers(0, 1 << 30))
def test_pieces_in_sequence_are_the_local_order(lengths: list[int], seed: int) -> None:
    expected = [(stream, i) for stream, n in enumerate(lengths) for i in range(n)]
    assert read(reading_of("split", lengths), Crew(lengths, seed)) == expected


@examples(150)
@given(lengths=lengths_of_streams, seeds=st.tuples(st.integers(0, 999), st.integers(0, 999)))
def test_turns_do_not_depend_on_what_arrives_first(
    lengths: list[int], seeds: tuple[int, int]
) -> None:
    first = read(reading_of("share", lengths), Crew(lengths, seeds[0]))
    second = read(reading_of("share", lengths), Crew(lengths, seeds[1], workers=1))
    assert first == second
    assert sorted(first) == [(stream, i) for stream, n in enumerate(lengths) for i in range(n)]


@examples(150)
@given(
    form=st.sampled_from(["random", "split", "share", "whole", "shard"]),
    ordered=st.booleans(),
    lengths=lengths_of_streams,
    seed=st.integers(0, 1 << 30),
    data=st.data(),
)
def test_every_element_once_with_a_restart_anywhere(
    form: str, ordered: bool, lengths: list[int], seed: int, data: st.DataObject
) -> None:
    lengths = lengths[:1] if form == "random" else lengths
    expected = [(stream, i) for stream, n in enumerate(lengths) for i in range(n)]
    cut = data.draw(st.integers(0, len(expected)))
    reading = reading_of(form, lengths, ordered)
    before = read(reading, Crew(lengths, seed), cut)
    state = reading.state()
    after = read(reading_of(form, lengths, ordered, state), Crew(lengths, seed + 1, workers=2))
    assert sorted(before + after) == expected
    if ordered and form != "whole":
        again = read(reading_of(form, lengths, ordered), Crew(lengths, seed + 2))
        assert before + after == again


@examples(50)
@given(
    form=st.sampled_from(["random", "split", "share", "whole"]),
    most=st.integers(1, 20),
    seed=st.integers(0, 1 << 30),
)
def test_no_more_is_asked_for_than_allowed(form: str, most: int, seed: int) -> None:
    lengths = [60] if form == "random" else [20, 0, 33, 7]
    crew = Crew(lengths, seed)
    reading = reading_of(form, lengths, most=most)
    for worker in crew.queues:
        reading.fetcher.join(worker)
    asked = taken = 0
    while not reading.over:
        asks = reading.fetcher.asks()
        crew.ask(asks)
        asked += sum(ask.stop - ask.start for ask in asks)
        # Elements that were requested beyond the end of a stream never arrive.
        assert sum(ask.stop - ask.at for q in crew.queues.values() for ask in q) <= most
        piece = reading.take(3, 0.0)
        if piece is None:
            crew.step(reading.fetcher, deaths=False)
        else:
            taken += len(piece)
    assert taken == sum(lengths)


def test_a_failure_takes_its_place() -> None:
    reading = reading_of("random", [3])
    reading.fetcher.join("w")
    ask = reading.fetcher.asks()[0]
    error = ValueError("no")
    reading.fetcher.arrive(ask.request, 0, Failure(error))
    reading.fetcher.done(Done(ask.request))
    taken = reading.take(5, 0.0)
    assert isinstance(taken, Failure)
    assert taken.error is error


def test_streams_whose_length_changes_are_noticed() -> None:
    reader = Fetcher(SequentialOrder(1), Limits(), bound=True)
    reader.join("a")
    ask = reader.asks()[0]
    reader.arrive(ask.request, 0, Elements(0, 0, 1))
    reader.lose("a")
    reader.join("b")
    reader.asks()
    with pytest.raises(DataLossError, match="stream 0 had 1 elements and, made again elsewhere, 0"):
        reader.order.turn().end(0)  # type: ignore[union-attr]


def test_a_stream_that_no_worker_can_make_is_an_error() -> None:
    reader = Fetcher(SequentialOrder(1), Limits(), bound=True)
    for worker in ("a", "b"):
        reader.join(worker)
        for ask in reader.asks():
            assert ask.worker == worker
            reader.refuse(ask.request, NotFoundError(f"not on {worker}"), elsewhere=True)
    with pytest.raises(NotFoundError, match="not on a"):
        reader.asks()


def test_who_refuses_everything_is_not_asked_for_ever_more() -> None:
    reader = Fetcher(SequentialOrder(-1), Limits(), bound=True)
    reader.sizes.record(1, 8, 0.0)
    reader.join("a")
    reader.join("b")
    refused = 0
    while of_a := [ask for ask in reader.asks() if ask.worker == "a"]:
        for ask in of_a:
            refused += 1
            reader.refuse(ask.request, NotFoundError("not on a"), elsewhere=True)
    assert 16 < refused < 40


def test_requests_to_other_workers_are_sent_before_an_error_is_raised() -> None:
    reader = Fetcher(SequentialOrder(3), Limits(), bound=True)
    reader.sizes.record(1, 8, 0.0)
    reader.join("a")
    first, second, _ = reader.asks()
    reader.refuse(second.request, NotFoundError("not on a"), elsewhere=True)
    reader.done(Done(first.request))
    assert [(ask.feed.stream, ask.start) for ask in reader.asks()] == [(0, 0)]
    with pytest.raises(NotFoundError, match="not on a"):
        reader.asks()


def leased_reading(state: Any = None) -> Reading:
    work = Work("digest", "job", "random", 0, 1, 1, (0,))
    held = claims_of(state)["held"] if state is not None else ()
    opened = OpenIterationReply(work, True, 1, (), (), held=held)
    return Reading(opened, Shape("random", length=50), Limits(), state=state)


def lease(reading: Reading, *spans: tuple[int, int, int], finished: bool = False) -> None:
    assert reading.want(0.0) > 0
    grants = tuple(Grant(StreamRange(*span)) for span in spans)
    reading.add_grants(LeaseReply(grants, finished), 0.0)


def state_of(reading: Reading, client: str, skip: int = 0) -> dict[str, Any]:
    own = {"repetition": 0, "key": 1, "epoch": [0], "clients": [client], **reading.state()}
    at: dict[str, Any] = {"own": own, "inputs": []}
    return {"plan": "p", "at": {"from": at, "skip": skip} if skip else at}


def test_leases_are_read_reported_and_kept_in_the_state() -> None:
    reading = leased_reading()
    lease(reading, (0, 0, 4), (0, 10, 12))
    crew = Crew([50], 1)
    assert read(reading, crew, 3, deaths=False) == [(0, 0), (0, 1), (0, 2)]
    reported, _ = reading.report(everything=True)
    assert sorted(i for a in reported for i in range(a.start, a.stop)) == [0, 1, 2]
    state = reading.state()
    assert state == {"consumed": {"0": [[0, 3]]}, "held": [[0, 3, 4], [0, 10, 12]], "ended": {}}
    assert claims_of(state) == {
        "consumed": (StreamRange(0, 0, 3),),
        "held": (StreamRange(0, 3, 4), StreamRange(0, 10, 12)),
        "merged": False,
        "finished": (),
    }
    restored = leased_reading(state)
    assert read(restored, Crew([50], 2), 3) == [(0, 3), (0, 10), (0, 11)]


@pytest.mark.parametrize("unused", range(5))
def test_what_was_not_used_is_not_reported(unused: int) -> None:
    reading = leased_reading()
    lease(reading, (0, 0, 9))
    crew = Crew([50], 1)
    read(reading, crew, 2, deaths=False)
    reading._rate = 1e9
    taken = len(reading.take(3, 0.0) or ())
    reading.give_back(min(unused, taken))
    reported, _ = reading.report(everything=True)
    consumed = [i for a in reported for i in range(a.start, a.stop)]
    assert sorted(consumed) == list(range(2 + taken - min(unused, taken)))


def test_a_lease_behind_the_end_of_its_stream_is_not_what_comes_next() -> None:
    work = Work("digest", "job", "split", 0, 2, 1, (0,))
    reading = Reading(OpenIterationReply(work, True, 1, (), ()), Shape("split", 2), Limits())
    lease(reading, (0, 3, 9), (1, 0, 9))
    reading.fetcher.join("w")
    assert reading.sure() == 0
    for ask in reading.fetcher.asks():
        assert ask.feed.stream == 0
        reading.fetcher.done(Done(ask.request, 3))
    assert reading.sure() == 0
    ask = reading.fetcher.asks()[0]
    reading.fetcher.arrive(ask.request, 0, Elements(1, 0, 1))
    assert reading.sure() == 1
    assert reading.state()["held"] == [[1, 0, 9]]
    reading.fetcher.done(Done(ask.request, 2))
    assert reading.sure() == 2


def test_leases_that_do_not_come_are_wanted_again() -> None:
    reading = leased_reading()
    assert reading.want(0.0) > 0
    assert reading.want(0.0) == 0
    reading.requests.is_waiting = False
    assert reading.want(0.0) > 0


def test_nothing_is_wanted_once_all_is_leased() -> None:
    reading = leased_reading()
    lease(reading, (0, 0, 2), finished=True)
    assert read(reading, Crew([50], 1)) == [(0, 0), (0, 1)]
    assert reading.want(0.0) == 0
    assert reading.over


def test_states_of_several_clients_are_merged() -> None:
    first, second = leased_reading(), leased_reading()
    lease(first, (0, 0, 4))
    lease(second, (0, 4, 10))
    read(first, Crew([50], 1), 2, deaths=False)
    read(second, Crew([50], 1), 1, deaths=False)
    merged = merge_states([state_of(first, "a", skip=1), state_of(second, "b")])
    own = merged["at"]["own"]
    assert own["consumed"] == {"0": [[0, 3], [4, 5]]}
    assert own["clients"] == ["a", "b"]
    assert own["held"] == []


def test_states_that_do_not_belong_together_are_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="there are no states"):
        merge_states([])
    with pytest.raises(InvalidArgumentError, match="needs states of iterators over a distributed"):
        merge_states([{"plan": "p", "at": 5}])
    one, other = state_of(leased_reading(), "a"), state_of(leased_reading(), "b")
    other["at"]["own"]["repetition"] = 1
    with pytest.raises(InvalidArgumentError, match="different iterations of a job"):
        merge_states([one, other])
    other = state_of(leased_reading(), "b")
    with pytest.raises(InvalidArgumentError, match="different datasets"):
        merge_states([one, {**other, "plan": "q"}])


def test_elements_that_end_every_worker_are_an_error() -> None:
    reader = Fetcher(SequentialOrder(1), Limits(), bound=False)
    for number in range(3):
        reader.join(f"w{number}")
        ask = reader.asks()[0]
        assert not reader.blame.is_certain
        reader.lose(f"w{number}", broken=True)
    reader.join("w3")
    assert reader.blame.is_certain
    assert reader.asks() == []
    with pytest.raises(
        AbortedError, match="3 workers were lost one after the other .* elements 0 "
    ):
        raise reader.blame.verdict()
    assert reader.asks()[0].start == ask.start == 0


def test_elements_that_crashed_a_worker_are_asked_of_it_again_if_it_returns() -> None:
    """That worker already searches for the cause; other workers would have to crash as well."""
    reader = Fetcher(SequentialOrder(1), Limits(), bound=False)
    reader.join("w0")
    reader.join("w1")
    [first] = [ask for ask in reader.asks() if ask.start == 0]
    other = {"w0": "w1", "w1": "w0"}[first.worker]
    reader.returning = {first.worker}
    reader.lose(first.worker, broken=True)
    assert all(ask.start for ask in reader.asks())
    reader.returning = set()
    reader.join(first.worker)
    assert [ask.worker for ask in reader.asks() if ask.start == 0] == [first.worker]
    reader.lose(first.worker, broken=True)
    assert [ask.worker for ask in reader.asks() if ask.start == 0] == [other]


def test_a_reader_leases_no_more_than_it_has_shown_to_need() -> None:
    reading = leased_reading()
    reading.fetcher.join("a")
    assert reading.want(0.0) == 2


def test_a_worker_that_is_about_to_stop_is_no_error() -> None:
    reader = reading_of("single", [20]).fetcher
    reader.join("u")
    asks = reader.asks()
    for ask in asks:
        reader.refuse(ask.request, UnavailableError("it stops"), elsewhere=True)
    assert reader.asks() == []
    reader.join("v")
    again = reader.asks()
    assert {ask.worker for ask in again} == {"v"}
    assert [ask.start for ask in again] == [ask.start for ask in asks]


def asked_one_by_one(*workers: str) -> tuple[Fetcher, dict[str, list[Ask]]]:
    """A reader with as many requests per worker as allowed, each for one element."""
    reader = reading_of("random", [100]).fetcher
    reader.sizes.record(1, 8, 1.0)
    for worker in workers:
        reader.join(worker)
    asks = reader.asks()
    return reader, {w: [ask for ask in asks if ask.worker == w] for w in workers}


def test_what_a_leaving_worker_hands_back_is_asked_for_at_once() -> None:
    """Other workers make these elements first: the reader needs them before the queued ones."""
    reader, asks = asked_one_by_one("u", "v")
    assert [ask.start for ask in asks["u"]] == [0, 2, 4, 6]
    assert [ask.start for ask in asks["v"]] == [1, 3, 5, 7]
    for ask in asks["u"][1:]:
        reader.refuse(ask.request, UnavailableError("it stops"), elsewhere=True)
    moved = reader.asks()
    assert [(ask.worker, ask.start) for ask in moved] == [("v", 2), ("v", 4), ("v", 6)]
    assert reader.asks() == []
    # The order in which the worker answers; it is making the first element already.
    for start in (1, 2, 3, 4, 5, 6, 7):
        first = reader._first_of("v")
        assert first is not None
        assert first.start == start
        reader.arrive(first.request, start, Elements(0, start, start + 1))
        reader.done(Done(first.request))
    assert reader.take(9) is None, "the leaving worker makes the first element"
    reader.arrive(asks["u"][0].request, 0, Elements(0, 0, 1))
    reader.done(Done(asks["u"][0].request))
    found: list[tuple[int, int]] = []
    while (taken := reader.take(9)) is not None:
        assert isinstance(taken[2], Elements)
        found += taken[2].addresses
    assert found == [(0, ordinal) for ordinal in range(8)]


def test_a_stream_that_moves_comes_before_later_streams() -> None:
    """The reader needs the whole stream first, however many requests the other worker has."""
    reader = Fetcher(SequentialOrder(9), Limits(), bound=True)
    reader.sizes.record(1, 8, 1.0)
    reader.join("u")
    reader.join("v")
    asks = reader.asks()
    lost = [ask for ask in asks if ask.worker == "u"]
    assert [ask.turn for ask in lost] == [0, 2, 4, 6]
    for ask in lost:
        reader.refuse(ask.request, UnavailableError("it stops"), elsewhere=True)
    moved = reader.asks()
    assert [(ask.worker, ask.turn) for ask in moved] == [("v", 0)], "what is needed first"
    length, found = 3, list[tuple[int, int]]()
    while (first := reader._first_of("v")) is not None and first.turn < 4:
        if first.start < length:
            came = Elements(first.turn, first.start, min(first.stop, length))
            found += came.addresses
            reader.arrive(first.request, first.start, came)
        reader.done(Done(first.request, length if first.stop >= length else None))
        while reader.take(9) is not None:
            pass
        reader.asks()
    # However many requests wait there, the stream that the user reads is asked for more.
    assert found == [(turn, start) for turn in range(4) for start in range(3)]


def test_a_stream_moves_with_the_mark_behind_the_last_element() -> None:
    """Another worker continues there, and computes no element again."""
    reader = reading_of("single", [20]).fetcher
    reader.sizes.record(1, 8, 1.0)
    reader.join("u")
    reader.join("v")
    [first] = reader.asks()
    reader.arrive(first.request, 0, Elements(0, 0, 1))
    reader.done(Done(first.request))
    second, *others = reader.asks()
    assert {ask.worker for ask in (second, *others)} == {"u"}
    for ask in others:
        reader.refuse(ask.request, UnavailableError("it stops"), elsewhere=True)
    assert reader.asks() == [], "it waits for the mark"
    reader.arrive(second.request, 1, Elements(0, 1, 2))
    reader.mark(second.request, mark := Mark(2, b"state"))
    reader.done(Done(second.request))
    again = reader.asks()
    assert [(ask.worker, ask.start) for ask in again] == [("v", 2), ("v", 3), ("v", 4), ("v", 5)]
    assert {ask.mark for ask in again} == {mark}


def test_later_leases_of_a_stream_wait_for_its_mark_too() -> None:
    """Otherwise another worker would compute the stream from its start, as it has no mark yet."""
    order = LeaseOrder()
    reader = Fetcher(order, Limits(), bound=True)
    reader.sizes.record(1, 8, 1.0)
    for worker in ("u", "v", "w"):
        reader.join(worker)
    order.grant([Grant(StreamRange(0, 0, 2), "u")], {})
    first, second = reader.asks()
    reader.refuse(second.request, UnavailableError("it stops"), elsewhere=True)
    order.grant([Grant(StreamRange(0, 2, 4), "w")], {})
    assert reader.asks() == [], "it waits for the mark"
    reader.arrive(first.request, 0, Elements(0, 0, 1))
    reader.mark(first.request, mark := Mark(1, b"state"))
    reader.done(Done(first.request))
    again = reader.asks()
    assert [(ask.worker, ask.start) for ask in again] == [("v", 1), ("v", 2), ("v", 3)]
    assert {ask.mark for ask in again} == {mark}


def test_a_large_mark_moves_once_and_only_to_a_worker_that_reads() -> None:
    """If both sides sent at once, a worker with open requests and the reader could deadlock."""
    reader = reading_of("single", [20]).fetcher
    reader.sizes.record(1, 8, 1.0)
    reader.join("u")
    [first] = reader.asks()
    reader.arrive(first.request, 0, Elements(0, 0, 1))
    reader.mark(first.request, small := Mark(0, b"state"))
    reader.mark(first.request, large := Mark(1, bytes(LARGE_STATE + 1)))
    reader.done(Done(first.request))
    for worker, following in (("u", "v"), ("v", "w")):  # Also if "v" is lost before it answers.
        reader.join(following)
        reader.lose(worker)
        asks = reader.asks()
        assert {ask.worker for ask in asks} == {following}
        assert [ask.start for ask in asks] == [1, 2, 3, 4]
        assert [ask.mark for ask in asks] == [large, small, small, small]
    reader.arrive(asks[0].request, 1, Elements(0, 1, 2))
    assert asks[0].feed.mark(9) is small, "a large one is kept no longer than necessary"


def read_with(*workers: str) -> tuple[Fetcher, list[Ask]]:
    """A reader of one stream that is computed in order, and its requests to the first worker."""
    reader = reading_of("single", [20]).fetcher
    reader.sizes.record(1, 8, 1.0)
    for worker in workers:
        reader.join(worker)
    [first] = reader.asks()
    reader.arrive(first.request, 0, Elements(0, 0, 1))
    reader.mark(first.request, Mark(0, b"small"))
    reader.done(Done(first.request))
    return reader, reader.asks()


def test_a_leaving_worker_is_asked_for_more_of_a_stream_whose_state_moves() -> None:
    reader, asks = read_with("u", "v")
    reader.leaving.add("u")
    reader.begin_move(asks[0].feed, "u")
    reader.arrive(asks[0].request, 1, Elements(0, 1, 2))
    reader.done(Done(asks[0].request))
    [more] = reader.asks()
    assert (more.worker, more.start) == ("u", 5)


@pytest.mark.parametrize("told", ["with an element", "between elements"])
def test_the_worker_that_has_the_state_of_a_stream_continues_it(told: str) -> None:
    reader, asks = read_with("u", "v", "w")
    reader.leaving.add("u")
    reader.begin_move(asks[0].feed, "u")
    moved = Mark(2, b"", "w")
    reader.arrive(asks[0].request, 1, Elements(0, 1, 2))
    if told == "with an element":
        reader.mark(asks[0].request, moved)
    else:
        reader.end_move(asks[0].feed, moved)
    reader.done(Done(asks[0].request))
    assert reader.asks() == [], "the leaving worker has not refused the rest yet"
    for ask in asks[1:]:
        reader.refuse(ask.request, UnavailableError("it stops"), elsewhere=True)
    again = reader.asks()
    assert [(ask.worker, ask.start) for ask in again] == [("w", 2), ("w", 3), ("w", 4), ("w", 5)]
    assert {ask.mark for ask in again} == {Mark(0, b"small")}, "the worker has the other one"
    assert again[0].feed.small_mark(9) == [0, b64encode(b"small").decode()]
    # If the worker is lost, the stream is computed again from the last mark that can be sent.
    reader.lose("w")
    again = reader.asks()
    assert {(ask.worker, ask.mark) for ask in again} == {("v", Mark(0, b"small"))}
    reader.arrive(again[0].request, 2, Elements(0, 2, 3))
    assert again[0].feed.marks.successor == "", "it is of no use any more"


def test_a_leaving_worker_is_asked_for_what_it_has_made_for_other_consumers() -> None:
    reader, asks = read_with("u", "v")
    reader.leaving.add("u")
    reader.begin_move(asks[0].feed, "u")
    for ask in asks:
        reader.arrive(ask.request, ask.start, Elements(0, ask.start, ask.stop))
        reader.done(Done(ask.request))
    reader.end_move(asks[0].feed, Mark(7, b"", "v"), "u")
    behind = reader.asks()
    assert [(ask.worker, ask.start, ask.stop) for ask in behind] == [("u", 5, 6), ("u", 6, 7)]
    for ask in behind:
        reader.arrive(ask.request, ask.start, Elements(0, ask.start, ask.stop))
        reader.done(Done(ask.request))
    assert {(ask.worker, ask.start >= 7) for ask in reader.asks()} == {("v", True)}


@pytest.mark.parametrize("waiting", [0, DEPTH])
def test_a_consumer_requests_what_a_leaving_worker_keeps_before_it_reads_a_reply(
    waiting: int,
) -> None:
    """The worker waits for these requests, and the consumer may have elements for a long time."""
    order = RoundRobinOrder(1)
    order.add(2, {0: "u", 1: "v"})
    reader = Fetcher(order, Limits(), bound=True)
    reader.sizes.record(1, 8, 1.0)
    for worker in ("u", "v"):
        reader.join(worker)
    [first, second] = reader.asks()
    for ask in (first, second):
        reader.arrive(ask.request, 0, Elements(ask.feed.stream, 0, 1))
        reader.done(Done(ask.request))
    requested = reader.asks()
    assert sorted(ask.worker for ask in requested) == [*DEPTH * "u", *DEPTH * "v"]
    for ask in requested[waiting:]:
        if ask.worker == "u":
            reader.arrive(ask.request, ask.start, Elements(0, ask.start, ask.stop))
            reader.done(Done(ask.request))
    reader.leaving.add("u")
    reader.end_move(first.feed, Mark(1000, b"", "v"), "u")
    [made] = [ask for ask in reader.asks() if ask.worker == "u"]
    assert (made.feed.stream, made.start, made.stop) == (0, 1 + DEPTH, 1000)


def test_what_a_leaving_worker_no_longer_has_is_asked_of_its_successor() -> None:
    reader, asks = read_with("u", "v")
    reader.leaving.add("u")
    reader.begin_move(asks[0].feed, "u")
    for ask in asks:
        reader.arrive(ask.request, ask.start, Elements(0, ask.start, ask.stop))
        reader.done(Done(ask.request))
    reader.end_move(asks[0].feed, Mark(7, b"", "v"), "u")
    behind = reader.asks()
    for ask in behind:
        reader.refuse(ask.request, UnavailableError("it stops"), elsewhere=True)
    assert {ask.worker for ask in reader.asks()} == {"v"}


def test_a_stream_that_its_worker_refuses_moves_no_longer() -> None:
    """Perhaps the worker failed to send the state, so the move is given up."""
    reader, asks = read_with("u", "v")
    reader.leaving.add("u")
    reader.begin_move(asks[0].feed, "u")
    for ask in asks:
        reader.refuse(ask.request, UnavailableError("it stops"), elsewhere=True)
    assert {ask.worker for ask in reader.asks()} == {"v"}


def test_clients_choose_the_same_successor_of_a_worker() -> None:
    one, other = (reading_of("single", [20]).fetcher for _ in range(2))
    for reader, names in ((one, "uvwx"), (other, "xwvu")):
        for name in names:
            reader.join(name)
    found = {worker: one.find_successor(worker, Feed(0)) for worker in "uvwx"}
    assert found == {worker: other.find_successor(worker, Feed(0)) for worker in "uvwx"}
    assert all(worker != successor for worker, successor in found.items())
    feed = Feed(0)
    assert one.find_successor("u", feed) == found["u"]
    one.join("t")
    assert one.find_successor("u", feed) == found["u"], "it keeps to its choice"
    one.leaving = {*"twx"}
    assert one.find_successor("u", feed) == "v"
    one.leaving = {*"tvwx"}
    assert one.find_successor("u", feed) is None
    assert reading_of("random", [20]).fetcher.find_successor("u", Feed(0)) is None


def test_streams_of_one_worker_have_several_successors() -> None:
    reader = reading_of("split", [20] * 30).fetcher
    for name in "uvwx":
        reader.join(name)
    feeds = [Feed(stream) for stream in range(30)]
    assert {reader.find_successor("u", feed) for feed in feeds} == {*"vwx"}
    feeds[0].refused = {"v": UnavailableError("no file"), "w": UnavailableError("no file")}
    assert reader.find_successor("u", feeds[0]) == "x"


def test_a_small_state_is_sent_to_the_worker_that_continues() -> None:
    reader, asks = read_with("u", "v", "w")
    reader.leaving.add("u")
    reader.begin_move(asks[0].feed, "u")
    reader.arrive(asks[0].request, 1, Elements(0, 1, 2))
    reader.mark(asks[0].request, Mark(2, b"last", "w"))
    reader.done(Done(asks[0].request))
    for ask in asks[1:]:
        reader.refuse(ask.request, UnavailableError("it stops"), elsewhere=True)
    again = reader.asks()
    assert {(ask.worker, ask.mark) for ask in again} == {("w", Mark(2, b"last", "w"))}
    # Any other worker can continue with it as well.
    reader.lose("w")
    assert {(ask.worker, ask.mark) for ask in reader.asks()} == {("v", Mark(2, b"last", "w"))}


def test_the_rest_of_a_request_is_asked_of_another_worker() -> None:
    reader = reading_of("random", [100]).fetcher
    reader.sizes.record(1, 8, 0.001)
    reader.sizes.grow(5)
    reader.join("u")
    ask = reader.asks()[0]
    assert (ask.start, ask.stop) == (0, 10)
    reader.join("v")
    reader.arrive(ask.request, 0, Elements(0, 0, 1))
    reader.refuse(ask.request, UnavailableError("it stops"), elsewhere=True)
    again = reader.asks()[0]
    assert (again.worker, again.start, again.stop) == ("v", 1, 10)


def test_a_crash_is_blamed_on_what_the_worker_was_making() -> None:
    """The blame does not depend on the order of the requests."""
    reader, asks = asked_one_by_one("u", "v")
    for ask in asks["u"]:
        reader.refuse(ask.request, UnavailableError("it stops"), elsewhere=True)
    reader.asks()
    first = asks["v"][0]
    reader.arrive(first.request, 1, Elements(0, 1, 2))
    reader.done(Done(first.request))
    reader.lose("v", broken=True)
    assert first.feed.crashed_at == {0: "v"}


def test_what_is_needed_first_is_asked_for_first() -> None:
    feed = Feed(0, stop=9)
    assert [feed.ask(3) for _ in range(3)] == [(0, 3), (3, 6), (6, 9)]
    for start in (0, 6, 3):
        feed.lose(start, start + 3)
    assert [feed.ask(3) for _ in range(3)] == [(0, 3), (3, 6), (6, 9)]


def test_a_restored_client_reads_what_it_was_given_again() -> None:
    state = {"consumed": {"0": [[0, 3]]}, "held": [[0, 3, 9]], "ended": {}}
    work = Work("digest", "job", "random", 0, 1, 1, (0,))
    given = (StreamRange(0, 3, 5), StreamRange(0, 7, 9))
    opened = OpenIterationReply(work, True, 1, (), (), held=given)
    reading = Reading(opened, Shape("random", length=50), Limits(), state=state)
    assert reading.state()["held"] == [[0, 3, 5], [0, 7, 9]]


def test_silence_is_borne_longer_each_time_the_same_elements_are_asked_for() -> None:
    """Otherwise a function that blocks the interpreter would be moved to worker after worker."""
    reading = reading_of("random", [100], most=1)
    reader = reading.fetcher
    assert reader.patience("a", 10.0) == 10.0
    for number in range(4):
        reader.join(f"w{number}")
        [ask] = reader.asks()
        assert reader.owed_next() is ask
        assert reader.patience(f"w{number}", 10.0) == 10.0 * 2**number
        reader.note_silence(f"w{number}")
        reader.lose(f"w{number}")
    assert reader.owed_next() is None
    reader.join("a")
    [ask] = reader.asks()
    reader.arrive(ask.request, 0, Elements(0, 0, 1), 0.0)
    reader.done(Done(ask.request))
    assert reading.take(1, 0.0) is not None
    [ask] = reader.asks()
    assert reader.patience("a", 10.0) == 10.0


def test_short_streams_are_asked_for_once_each() -> None:
    lengths = [number % 4 for number in range(400)]
    reading, crew = reading_of("split", lengths), Crew(lengths, 0)
    requests = 0

    def count(asks: list[Ask], ask: Any = crew.ask) -> None:
        nonlocal requests
        requests += len(asks)
        ask(asks)

    crew.ask = count  # type: ignore[method-assign]
    got = read(reading, crew, deaths=False)
    assert got == [(stream, at) for stream in range(400) for at in range(stream % 4)]
    assert requests < 1.1 * len(lengths)


def test_no_more_is_asked_for_than_streams_seem_to_have() -> None:
    lengths = [40] * 60
    reading, crew = reading_of("split", lengths), Crew(lengths, 0)
    asked = 0

    def count(asks: list[Ask], ask: Any = crew.ask) -> None:
        nonlocal asked
        asked += sum(one.stop - one.start for one in asks)
        ask(asks)

    crew.ask = count  # type: ignore[method-assign]
    got = read(reading, crew, deaths=False)
    assert got == [(stream, at) for stream in range(60) for at in range(40)]
    assert asked < 1.5 * len(got)
