"""`Asks`: the requests of a client that workers have not answered yet."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.service.logic.feeds import Feed
from penstock.service.protocol.data_messages import Mark


@dataclass
class Ask:
    """A request to a worker. `at` is the next ordinal that the worker sends."""

    request: int
    worker: str
    feed: Feed
    start: int
    stop: int
    mark: Mark | None
    at: int


class Asks(dict[int, Ask]):
    """By number; those of one worker in the order in which the worker answers them."""

    def add(self, ask: Ask) -> None:
        """Adds a request where its worker puts it: before those for later elements of its feed.

        The first request of a worker stays first, because the worker has begun it.
        """
        waiting = self.of_worker(ask.worker)[1:]
        later = [o.request for o in waiting if o.feed is ask.feed and o.start > ask.start]
        self[ask.request] = ask
        if later:
            requests = list(self)
            for request in requests[requests.index(later[0]) : -1]:
                self[request] = self.pop(request)

    def of_worker(self, worker: str) -> list[Ask]:
        return [ask for ask in self.values() if ask.worker == worker]

    def of_feed(self, feed: Feed) -> list[Ask]:
        return [ask for ask in self.values() if ask.feed is feed]
