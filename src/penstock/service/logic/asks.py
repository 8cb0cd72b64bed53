"""`Asks`: the requests of a client that workers have not answered yet."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.service.logic.feeds import Feed
from penstock.service.protocol.data_messages import Mark


@dataclass
class Ask:
    """A request to a worker. `at` is the next ordinal that the worker sends.

    A worker answers requests with a lower `turn` first.
    """

    request: int
    worker: str
    feed: Feed
    start: int
    stop: int
    mark: Mark | None
    at: int
    turn: int = 0


class Asks(dict[int, Ask]):
    """By number; those of one worker in the order in which the worker answers them."""

    def __init__(self) -> None:
        super().__init__()
        self._latest: dict[str, int] = {}
        """The highest turn that each worker was asked for."""

    def add(self, ask: Ask, again: bool) -> None:
        """Adds a request where its worker puts it: before those that are needed later.

        `again`: later elements of its feed may have been requested before. The first request of a
        worker stays first, because the worker has begun it, unless it has a higher turn: then the
        worker interrupts it.
        """
        self[ask.request] = ask
        if again or self.has_later(ask.worker, ask.turn):
            first, *waiting = self.of_worker(ask.worker)[:-1] or [ask]
            for other in (first, *waiting):
                precedes = other.feed is ask.feed and other.start > ask.start
                if other.turn > ask.turn or (precedes and other is not first):
                    self._move_last(other)
                    break
        self._latest[ask.worker] = max(ask.turn, self._latest.get(ask.worker, 0))

    def _move_last(self, before: Ask) -> None:
        requests = list(self)
        for request in requests[requests.index(before.request) : -1]:
            self[request] = self.pop(request)

    def clear(self) -> None:
        super().clear()
        self._latest.clear()

    def remove_worker(self, worker: str) -> list[Ask]:
        """Removes all requests of a worker, and returns them."""
        owed = self.of_worker(worker)
        for ask in owed:
            del self[ask.request]
        self._latest.pop(worker, None)
        return owed

    def has_later(self, worker: str, turn: int) -> bool:
        """Whether a worker was ever asked for a higher turn."""
        return self._latest.get(worker, 0) > turn

    def of_worker(self, worker: str) -> list[Ask]:
        return [ask for ask in self.values() if ask.worker == worker]

    def of_feed(self, feed: Feed) -> list[Ask]:
        return [ask for ask in self.values() if ask.feed is feed]
