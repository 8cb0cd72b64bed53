"""Iterating ahead: elements are sent to their device before they are asked for.

What the user has been given counts: a state is that of the oldest element still on its way.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Protocol

from penstock.data.iterator import Iterator
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
    """Iterates over a dataset's elements as tensors; can be saved and resumed at any of them."""

    def __init__(self, iterator: Iterator, transfer: Transfer) -> None:
        self._iterator = iterator
        self._transfer = transfer
        self._sent: deque[tuple[Place, Any]] = deque()
        self._left_at: Place | None = None
        self._ended = False

    def __iter__(self) -> AdaptedIterator:
        return self

    def __next__(self) -> Any:
        while len(self._sent) <= self._transfer.ahead and not self._ended:
            self._send()
        if not self._sent:
            raise StopIteration
        _, sent = self._sent.popleft()
        if isinstance(sent, _Failure):
            raise sent.error
        return self._transfer.receive(sent)

    def _send(self) -> None:
        """A failure waits for its turn: the elements before it come first."""
        place = self._iterator._here()
        try:
            sent = self._transfer.send(next(self._iterator))
        except StopIteration:
            self._ended = True
            return
        except Exception as error:
            sent = _Failure(error)
        self._sent.append((place, sent))

    def state_dict(self) -> dict[str, Any]:
        """Where the iteration is: small, and JSON where no user data is buffered."""
        state, place = self._iterator.state_dict(), self._place()
        return state if place is None else state | {"at": place.state}

    def _place(self) -> Place | None:
        """Where the oldest element on its way stood; None if none is."""
        return self._sent[0][0] if self._sent else self._left_at

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from `state`, exactly: the same rest of the sequence."""
        self._iterator.load_state_dict(state)
        self._sent.clear()
        self._left_at, self._ended = None, False

    def close(self) -> None:
        """Ends the iteration and its threads; twice is fine."""
        self._left_at, self._ended = self._place(), True
        self._sent.clear()
        self._iterator.close()

    def __enter__(self) -> AdaptedIterator:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._iterator!r}>"
