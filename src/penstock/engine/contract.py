"""Streams: a sequence of chunks that is pulled, can say where it is, and can be closed.

The contract. `pull(limit)` gives 1 to `limit` elements, as soon as it has some: *a chunk never
waits* for more than about a millisecond of work. `StopIteration` is the end, and stays the end.
Any other exception is one element that could not be made: it is raised after all elements before it
were handed on, and the next pull continues behind it. `save()` returns where the stream is; opening
the same plan with that state gives exactly the rest.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from penstock.element.chunk import Chunk

State = Any
"""A position (int) where the plan has random access; else a dict of plain values."""


class LazyState:
    """A part of a state that is computed only when `copy_state` copies the state."""

    def __init__(self, make: Callable[[], State]) -> None:
        self.make = make


def copy_state(state: State) -> State:
    """A copy of a state in plain values, which streams do not change any more."""
    if isinstance(state, dict):
        return {name: copy_state(part) for name, part in state.items()}
    if isinstance(state, list):
        return [copy_state(part) for part in state]
    return state.make() if isinstance(state, LazyState) else state


class Stream:
    """One operator at work: callers pull from it, save it and close it.

    An operator implements `pull`, or `pull_needed` if it matters to it how many elements are
    needed. It pulls from `inputs` and keeps its own part of the state small.
    """

    inputs: tuple[Stream, ...] = ()

    def pull(self, limit: int) -> Chunk:
        """1 to `limit` elements, StopIteration at the end."""
        return self.pull_needed(1, limit)

    def pull_needed(self, needed: int, limit: int, rows: int = 0) -> Chunk:
        """Like `pull`, for a caller that can hand on nothing before it has `needed` elements.

        So a stream may compute that many before it returns, also if each may block; or as many as
        have `rows` rows together, if the caller needs rows.
        """
        return self.pull(limit)

    def save(self) -> State:
        """Where the stream is, counting only what was handed on."""
        return {"own": self._own_state(), "inputs": self._input_states()}

    def _own_state(self) -> State:
        """This operator's own part of the state; None if it keeps nothing."""
        return None

    def _input_states(self) -> list[State]:
        """Where the inputs are, counting only what this operator handed on."""
        return [stream.save() for stream in self.inputs]

    @property
    def remote(self) -> Remote | None:
        """The readers of services among the inputs; None if all elements are made here."""
        for stream in self.inputs:
            if stream.remote is not None:
                return _RemoteInputs(self.inputs)
        return None

    def finish(self) -> None:
        """The caller got StopIteration and will not pull again.

        The inputs may have more elements, or they may have ended without having been asked.
        """
        for stream in self.inputs:
            stream.finish()

    def close(self) -> None:
        """Ends threads and releases what is open; a second call does nothing."""
        for stream in self.inputs:
            stream.close()


class Remote(Protocol):
    """The part of a stream that reads from a service: all that other processes have to do with it.

    Other processes may take elements of the same sequence. Only what this reader has claimed will
    come again from a state, so states are exact as long as callers pull no more than `sure` says
    and call `commit` before they hand out a state.
    """

    @property
    def replays(self) -> bool:
        """Whether every element comes again from a state, claimed or not."""

    @property
    def shared_end(self) -> bool:
        """At the end: whether other readers got elements that this reader did not get."""

    def sure(self, limit: int) -> int:
        """How many of `limit` elements would come again from the state as it is now."""

    def commit(self, unused: int = 0) -> None:
        """Reports what was handed out, because the caller keeps a state.

        The caller has not used the last `unused` elements of the last pull yet.
        """

    def give_back(self, count: int) -> None:
        """Gives the last `count` elements of the last pull back: the caller never used them."""

    def interrupt(self) -> None:
        """Makes a `pull` that blocks in another thread raise."""


class _RemoteInputs:
    """What an operator reads from services: only one element at a time is sure."""

    def __init__(self, inputs: tuple[Stream, ...]) -> None:
        found = (stream.remote for stream in inputs)
        self._inputs = [remote for remote in found if remote is not None]

    @property
    def replays(self) -> bool:
        return all(remote.replays for remote in self._inputs)

    @property
    def shared_end(self) -> bool:
        return any(remote.shared_end for remote in self._inputs)

    def sure(self, limit: int) -> int:
        return limit if self.replays else 1

    def commit(self, unused: int = 0) -> None:
        # An element of an operator may be made of many elements of its inputs: all count as used.
        for remote in self._inputs:
            remote.commit()

    def give_back(self, count: int) -> None:
        """Gives nothing back: the operator has used the elements of its inputs."""

    def interrupt(self) -> None:
        for remote in self._inputs:
            remote.interrupt()


def must_settle(stream: Stream) -> bool:
    """Whether a state of this stream is exact only for the elements that it has claimed."""
    remote = stream.remote
    return remote is not None and not remote.replays
