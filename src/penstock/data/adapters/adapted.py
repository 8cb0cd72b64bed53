"""Iterating ahead: elements are sent to their device before they are asked for.

What the user has been given counts: a state is that of the oldest element still on its way.
"""

from __future__ import annotations

import threading
from collections import deque
from concurrent.futures import Future
from typing import Any, Protocol

from penstock.data.iterator import Iterator
from penstock.engine.pool import Pool
from penstock.engine.stream import Place


class Transfer(Protocol):
    """Moves elements to where they are used."""

    ahead: int
    """How many elements are on their way while the user works on another."""

    def send(self, element: Any) -> Any:
        """Begins to move an element; may return before it is there."""

    def receive(self, sent: Any) -> Any:
        """The element that `send` began to move, fit for use by the caller."""


class _Failure:
    """What came in the place of an element."""

    def __init__(self, error: Exception) -> None:
        self.error = error


class AdaptedIterator:
    """Iterates over a dataset's elements as tensors; can be saved and resumed at any of them.

    A thread makes and sends the elements ahead; it ends as soon as there are enough of them.
    """

    def __init__(self, iterator: Iterator, transfer: Transfer) -> None:
        self._iterator = iterator
        self._transfer = transfer
        self._sent: deque[tuple[Place, Any]] = deque()
        self._at: Place | None = None
        """Where the element in the making stands; None: where the iterator is."""
        self._ended = False
        self._changed = threading.Condition()
        self._pool = Pool(1, "penstock-sending")
        self._pool.stop_with(self)
        self._sending: Future[None] | None = None

    def __iter__(self) -> AdaptedIterator:
        return self

    def __next__(self) -> Any:
        sent = self._first() if self._transfer.ahead else self._made()[1]
        if isinstance(sent, _Failure):
            raise sent.error
        return self._transfer.receive(sent)

    def _first(self) -> Any:
        """The oldest element on its way; the next ones are begun."""
        with self._changed:
            self._send_ahead()
            while not self._sent and not self._ended:
                self._changed.wait()
            if not self._sent:
                raise StopIteration
            _, sent = self._sent.popleft()
            self._send_ahead()
        return sent

    def _send_ahead(self) -> None:
        if not self._ended and (self._sending is None or self._sending.done()):
            self._sending = self._pool.submit(self._fill)

    def _fill(self) -> None:
        made: tuple[Place, Any] | None = None
        while True:
            with self._changed:
                if made is not None:
                    self._sent.append(made)
                # Together with what was sent, so that a state never misses an element.
                self._at = self._iterator._here()
                self._changed.notify_all()
                if self._ended or len(self._sent) >= self._transfer.ahead:
                    return
            try:
                made = self._made()
            except StopIteration:
                made, self._ended = None, True

    def _made(self) -> tuple[Place, Any]:
        """The next element, begun to be sent; a failure waits for its turn as elements do."""
        place = self._iterator._here()
        try:
            return place, self._transfer.send(next(self._iterator))
        except StopIteration:
            raise
        except Exception as error:
            return place, _Failure(error)

    def state_dict(self) -> dict[str, Any]:
        """Where the iteration is: small, and JSON where no user data is buffered."""
        with self._changed:
            place = self._place()
            state = self._iterator.state_dict()
        return state if place is None else state | {"at": place.state}

    def _place(self) -> Place | None:
        """Where the oldest element on its way stands; None if none is."""
        return self._sent[0][0] if self._sent else self._at

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from `state`, exactly: the same rest of the sequence."""
        ended = self._stop()
        try:
            self._iterator.load_state_dict(state)
        except Exception:
            self._ended = ended
            raise
        self._sent.clear()
        self._at, self._ended = None, False

    def close(self) -> None:
        """Ends the iteration and its threads; twice is fine."""
        self._stop()
        self._at = self._place()
        self._sent.clear()
        self._iterator.close()

    def _stop(self) -> bool:
        """Ends the thread; whether the iteration had ended before."""
        with self._changed:
            ended, self._ended = self._ended, True
            self._changed.notify_all()
        self._pool.stop(join=True)
        self._sending = None
        return ended

    def __enter__(self) -> AdaptedIterator:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._iterator!r}>"
