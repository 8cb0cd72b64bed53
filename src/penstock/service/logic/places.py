"""Places: which worker makes which stream of an iteration, and to whom each belongs.

A stream that belongs to an address goes back there when a worker comes up at it.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from penstock.service.logic.facts import StreamPlace
from penstock.service.logic.roster import Roster
from penstock.service.protocol.messages import UNDECIDED


class Places:
    """The places of one iteration's streams; `owned` ones are remembered without a worker, too."""

    def __init__(self, job: str, owned: bool) -> None:
        self.version = 0
        self.homes: dict[str, dict[int, None]] = {}
        """The streams that belong to an address."""
        self.guests: dict[int, None] = {}
        """Streams that are not made by the worker they belong to."""
        self.undecided: dict[int, None] = {}
        """Streams that have no turns before all consumers know in which lap they begin."""
        self._job = job
        self._owned = owned
        self._places: dict[int, StreamPlace] = {}

    def __len__(self) -> int:
        return len(self._places)

    def __iter__(self) -> Iterator[StreamPlace]:
        return iter(self._places.values())

    def __contains__(self, stream: int) -> bool:
        return stream in self._places

    def worker(self, stream: int) -> str | None:
        place = self._places.get(stream)
        return place.worker if place is not None else None

    def home(self, stream: int) -> str:
        place = self._places.get(stream)
        return place.home if place is not None else ""

    def begins(self, stream: int) -> int:
        """The lap in which a stream has its first turn; UNDECIDED if it is not known."""
        place = self._places.get(stream)
        return UNDECIDED if place is None or place.begins is None else place.begins

    def put(self, place: StreamPlace, roster: Roster) -> None:
        """A stream has another place."""
        before = self._leave(place.stream, roster)
        if place.begins is None:
            begins = before.begins if before is not None else 0
            place = msgspec.structs.replace(place, begins=begins)
        if place.begins == UNDECIDED:
            self.undecided[place.stream] = None
        else:
            self.undecided.pop(place.stream, None)
        if self._owned or (before is not None and place.worker is not None):
            self.version += 1
        self._places[place.stream] = place
        if place.home:
            self.homes.setdefault(place.home, {})[place.stream] = None
        if place.worker is not None:
            roster.give(place.worker, self._job, place.stream)
        if self._owned and roster.address(place.worker) != place.home:
            self.guests.setdefault(place.stream)
        else:
            self.guests.pop(place.stream, None)

    def vacate(self, stream: int, roster: Roster) -> None:
        """Nobody makes a stream now."""
        if self._owned:
            self.put(StreamPlace(stream, None, self.home(stream)), roster)
        else:
            self._leave(stream, roster)

    def clear(self, roster: Roster) -> None:
        """Nobody makes any."""
        for stream in list(self._places):
            self.vacate(stream, roster)

    def _leave(self, stream: int, roster: Roster) -> StreamPlace | None:
        before = self._places.pop(stream, None)
        if before is not None:
            roster.take(before.worker, self._job, stream)
            self.homes.get(before.home, {}).pop(stream, None)
            if not self.homes.get(before.home, True):
                del self.homes[before.home]
        return before
