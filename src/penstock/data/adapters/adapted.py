"""Iterating ahead: a thread sends elements to their device before the caller needs them.

A state counts the elements that the caller got: it is the place of the oldest element in flight.
"""

from __future__ import annotations

import threading
from collections import deque
from concurrent.futures import Future
from typing import Any, Protocol

from penstock.data.iterator import Iterator
from penstock.engine.inlets import Place
from penstock.engine.pool import Pool


class Transfer(Protocol):
    """Moves elements to where they are used."""

    ahead: int
    """How many elements are in flight while the caller works on another."""

    def send(self, element: Any) -> Any:
        """Starts to move an element; may return before the copy is complete."""

    def receive(self, sent: Any) -> Any:
        """Returns the element that `send` started to move, ready for the caller."""


class _Failure:
    """An error in the place of an element."""

    def __init__(self, error: Exception) -> None:
        self.error = error


class AdaptedIterator:
    """Iterates over a dataset's elements as tensors; can be saved and resumed at any of them.

    A thread computes and sends elements ahead; it ends as soon as `Transfer.ahead` are in flight.
    """

    def __init__(self, iterator: Iterator, transfer: Transfer) -> None:
        self._iterator = iterator
        self._transfer = transfer
        self._sent: deque[tuple[Place, Any]] = deque()
        self._at: Place | None = None
        """The place of the element being computed; None: where the iterator is."""
        self._ended = False
        self._changed = threading.Condition()
        """Guards `_sent` and `_at` while the sending thread runs."""
        self._pool = Pool(1, "penstock-sending")
        self._pool.stop_with(self)
        self._sending: Future[None] | None = None

    def __iter__(self) -> AdaptedIterator:
        return self

    def __next__(self) -> Any:
        sent = self._pop_oldest() if self._transfer.ahead else self._send_next()[1]
        if isinstance(sent, _Failure):
            raise sent.error
        return self._transfer.receive(sent)

    def _pop_oldest(self) -> Any:
        """Removes and returns the oldest element in flight, and starts to send more."""
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
                # Under the same lock as `_sent`, so that a state never misses an element.
                self._at = self._iterator._here()
                self._changed.notify_all()
                if self._ended or len(self._sent) >= self._transfer.ahead:
                    return
            try:
                made = self._send_next()
            except StopIteration:
                made, self._ended = None, True

    def _send_next(self) -> tuple[Place, Any]:
        """Starts to send the next element; an error takes the place of its element."""
        place = self._iterator._here()
        try:
            return place, self._transfer.send(next(self._iterator))
        except StopIteration:
            raise
        except Exception as error:
            return place, _Failure(error)

    def state_dict(self) -> dict[str, Any]:
        """The position of the iteration: small, and JSON unless an operator buffers user data."""
        with self._changed:
            place = self._oldest_place()
            state = self._iterator.state_dict()
        return state if place is None else state | {"at": place.state}

    def _oldest_place(self) -> Place | None:
        """The place of the oldest element in flight; None if there is none."""
        return self._sent[0][0] if self._sent else self._at

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues from `state`, with exactly the rest of the sequence."""
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
        self._at = self._oldest_place()
        self._sent.clear()
        self._iterator.close()

    def _stop(self) -> bool:
        """Ends the thread; returns whether the iteration had ended before."""
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
