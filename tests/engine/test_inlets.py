"""Inlets and counters: they count the elements handed on, and take unneeded ones back."""

import pytest

from penstock.element.chunk import Chunk
from penstock.engine.contract import Stream, must_settle
from penstock.engine.inlets import ElementCounter, Inlet
from penstock.engine.meters import Tap


class ScriptedStream(Stream):
    """Gives as many elements per pull as the script says, or fails where it says None."""

    def __init__(self, *script: int | None) -> None:
        self._script = list(script)
        self._given = 0

    def pull(self, limit: int) -> Chunk:
        if not self._script:
            raise StopIteration
        count = self._script.pop(0)
        if count is None:
            self._given += 1
            raise ValueError("this element cannot be made")
        chunk = Chunk.of(list(range(self._given, self._given + min(count, limit))))
        self._given += len(chunk)
        return chunk

    def _own_state(self) -> int:
        return self._given


def test_a_failure_counts_as_one_element_and_the_end_as_none():
    feed = ElementCounter(ScriptedStream(3, None, 2), 10)
    assert len(feed.pull(5)) == 3
    with pytest.raises(ValueError, match="cannot be made"):
        feed.pull(5)
    assert feed.count == 14
    feed.pull(5)
    for _ in range(2):
        with pytest.raises(StopIteration):
            feed.pull(5)
    assert feed.count == 16


def test_what_an_inlet_takes_back_does_not_count():
    feed = Inlet(ScriptedStream(4, None), 10)
    chunk = feed.pull(4)
    assert feed.count == 14
    feed.unread(chunk, 1)
    assert feed.count == 11
    assert feed.pull(2).elements() == [1, 2]
    assert feed.count == 13
    feed.pull(9)
    with pytest.raises(ValueError, match="cannot be made") as failed:
        feed.pull(1)
    assert feed.count == 15
    feed.unraise(failed.value)
    assert feed.count == 14


def test_places_are_counted_from_the_last_mark():
    feed = Inlet(ScriptedStream(2, None, 2), 10)
    feed.pull(2)
    assert feed.save() == {"own": 2, "inputs": []}
    with pytest.raises(ValueError, match="cannot be made"):
        feed.pull(1)
    assert feed.place.after(1).state in (
        {"from": {"own": 0, "inputs": []}, "skip": 3},
        {"from": {"own": 2, "inputs": []}, "skip": 1},
    )


class Claiming(ScriptedStream):
    """A stream whose elements other readers may take: two of them are claimed in each state."""

    replays, shared_end = False, True

    def __init__(self, *script: int | None) -> None:
        super().__init__(*script)
        self.calls: list[object] = []

    @property
    def remote(self) -> "Claiming":
        return self

    def sure(self, limit: int) -> int:
        return min(2, limit)

    def commit(self, unused: int = 0) -> None:
        self.calls.append(("commit", unused))

    def give_back(self, count: int) -> None:
        self.calls.append(("unused", count))

    def interrupt(self) -> None:
        self.calls.append("interrupt")


class Passing(Stream):
    def __init__(self, *inputs: Stream) -> None:
        self.inputs = inputs


def test_streams_of_this_process_read_from_no_service():
    stream = Passing(ScriptedStream(1), Passing(ScriptedStream(1)))
    assert stream.remote is None
    assert not must_settle(stream)
    assert ElementCounter(stream.inputs[0]).pull(5).elements() == [0]


def test_a_tap_hands_on_what_is_remote():
    remote = Claiming(9)
    assert Tap(remote, None).remote is remote
    assert len(Inlet(Tap(remote, None)).pull(9)) == 2


def test_an_operator_is_sure_of_one_element_and_used_all_that_it_pulled():
    remote = Claiming(9)
    found = Passing(ScriptedStream(1), Tap(Passing(remote), None)).remote
    assert found is not None
    assert (found.replays, found.shared_end, found.sure(9)) == (False, True, 1)
    found.commit(3)
    found.give_back(3)
    found.interrupt()
    assert remote.calls == [("commit", 0), "interrupt"]


def test_where_other_readers_may_take_elements_every_place_is_a_mark(monkeypatch):
    monkeypatch.setattr("time.perf_counter", lambda: 0.0)
    feed = Inlet(Tap(Claiming(1, 1, 1), None))
    for number in range(3):
        feed.pull(9)
        assert feed.place.state == {"own": number, "inputs": []}
