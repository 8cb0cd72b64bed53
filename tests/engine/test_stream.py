"""What all streams share: counting what was handed on, and taking back what was not needed."""

import pytest

from penstock.element.chunk import Chunk
from penstock.engine.stream import Counted, Inlet, Stream


class Scripted(Stream):
    """Gives up to the number of elements that the script says next, or fails where it says None."""

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

    def state(self) -> int:
        return self._given


def test_a_failure_counts_as_one_element_and_the_end_as_none():
    feed = Counted(Scripted(3, None, 2), 10)
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
    feed = Inlet(Scripted(4, None), 10)
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
    feed = Inlet(Scripted(2, None, 2), 10)
    feed.pull(2)
    assert feed.save() == {"own": 2, "inputs": []}
    with pytest.raises(ValueError, match="cannot be made"):
        feed.pull(1)
    assert feed.place.after(1).state in (
        {"from": {"own": 0, "inputs": []}, "skip": 3},
        {"from": {"own": 2, "inputs": []}, "skip": 1},
    )
