"""Merging operators that choose the input of each element: `choose_from_datasets` and `mix`.

What one pull hands on is decided in two steps: each input gives elements for its choices, then the
choices before the first that cannot be served yet are used, and the rest is taken back.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import accumulate
from math import gcd, lcm

import numpy as np

from penstock.element.chunk import Chunk
from penstock.element.columns import Array
from penstock.engine.contract import LazyState, State, Stream
from penstock.engine.inlets import Inlet
from penstock.engine.streams.merging import StructureCheck
from penstock.errors import InvalidArgumentError, InvalidTypeError
from penstock.plan.nodes import Mix


@dataclass
class _Supply:
    """What one dataset gives for its choices, which are at the indices `at`.

    Choices from `cut` on cannot be served yet: the dataset has no more elements ready, has ended,
    or its next element failed.
    """

    number: int
    at: Array
    chunk: Chunk | None
    cut: int
    error: Exception | None = None
    ended: bool = False


class _Inputs:
    """Several datasets, from which elements are taken by choices."""

    def __init__(self, streams: Sequence[Stream], where: str) -> None:
        self.feeds = [Inlet(stream) for stream in streams]
        self._structures = StructureCheck(where)

    def supply_all(self, numbers: Array, done: Sequence[int], skips: bool) -> list[_Supply]:
        """What each chosen dataset has for its choices.

        A dataset that is `done` has nothing. If `skips`, the choices of a dataset that
        ends now are skipped; else no choice behind the first of these can be served.
        """
        supplies: list[_Supply] = []
        for number in dict.fromkeys(numbers.tolist()):
            at = np.flatnonzero(numbers == number)
            if number in done:
                supplies.append(_Supply(number, at, None, len(numbers)))
            else:
                supplies.append(self._supply(number, at, len(numbers), skips))
        return supplies

    def _supply(self, number: int, at: Array, total: int, skips: bool) -> _Supply:
        try:
            chunk = self.feeds[number].pull(len(at))
        except StopIteration:
            cut = total if skips else int(at[0])
            return _Supply(number, at, None, cut, ended=True)
        except Exception as error:
            self.feeds[number].unraise(error)
            return _Supply(number, at, None, int(at[0]), error)
        cut = int(at[len(chunk)]) if len(chunk) < len(at) else total
        return _Supply(number, at, chunk, cut)

    def give_back(self, supplies: list[_Supply], used: int) -> _Supply | None:
        """Takes back what follows the first `used` choices; returns the first one if it failed."""
        for supply in supplies:
            if supply.chunk is not None:
                count = int(np.searchsorted(supply.at, used))
                self.feeds[supply.number].unread(supply.chunk, count)
                supply.chunk = supply.chunk.rows(0, count) if count else None
        return next((s for s in supplies if s.error is not None and s.cut == 0), None)

    def merge(self, supplies: list[_Supply], used: int) -> Chunk | None:
        """The elements of the first `used` choices; None if there are none."""
        chosen = [supply for supply in supplies if used and supply.chunk is not None]
        if not chosen:
            return None
        chunks = [self._structures.check(s.chunk) for s in chosen if s.chunk is not None]
        order = np.concatenate([supply.at[supply.at < used] for supply in chosen])
        return Chunk.join(chunks).take(np.argsort(order, kind="stable"))


class ChooseStream(Stream):
    """Elements of several inputs: each choice names the input of the next one."""

    def __init__(self, parts: tuple[Stream, ...], stop_on_empty: bool, done: State) -> None:
        self.inputs = parts
        self._choices = Inlet(parts[0])
        self._parts = _Inputs(parts[1:], "Dataset.choose_from_datasets")
        self._stop = stop_on_empty
        self._done: list[int] = list(done or ())

    def pull(self, limit: int) -> Chunk:
        while not self._is_finished:
            choices = self._choices.pull(limit)
            numbers = self._valid_choices(choices)
            supplies = self._parts.supply_all(numbers, self._done, skips=not self._stop)
            used = min((supply.cut for supply in supplies), default=0)
            # A dataset has ended only if all choices before its first one are served.
            self._done += [
                supply.number for supply in supplies if supply.ended and supply.at[0] <= used
            ]
            failed = self._parts.give_back(supplies, used)
            self._choices.unread(choices, used if failed is None else 1)
            if failed is not None:
                self._parts.feeds[failed.number].pull(1)  # Raises what was taken back.
            if (chunk := self._parts.merge(supplies, used)) is not None:
                return chunk
        raise StopIteration

    @property
    def _is_finished(self) -> bool:
        return bool(self._done) if self._stop else len(self._done) == len(self._parts.feeds)

    def _valid_choices(self, choices: Chunk) -> Array:
        """The choices before the first invalid one; raises if that is the first of all."""
        numbers, count = np.asarray(choices.columns[0]), len(self._parts.feeds)
        if numbers.ndim != 1 or numbers.dtype.kind not in "iu":
            raise InvalidTypeError(
                "Dataset.choose_from_datasets: choice_dataset must hold int64 scalars, got "
                f"{choices.elements()[0]!r:.60}; map it to numpy.int64(...)"
            )
        wrong = np.flatnonzero((numbers < 0) | (numbers >= count))
        if len(wrong) and wrong[0] == 0:
            self._choices.unread(choices, 1)
            raise InvalidArgumentError(
                f"Dataset.choose_from_datasets: choice {int(numbers[0])} is not one of the "
                f"{count} datasets; choices count from 0"
            )
        return numbers[: int(wrong[0])] if len(wrong) else numbers

    def _own_state(self) -> State:
        return list(self._done)

    def _input_states(self) -> list[State]:
        return [self._choices.save(), *(feed.save() for feed in self._parts.feeds)]


class MixStream(Stream):
    """Elements of several inputs, in exact proportions.

    An input that ended is drawn from no more. `repetitions` return how often an input that is
    repeated began anew.
    """

    def __init__(
        self,
        node: Mix,
        parts: tuple[Stream, ...],
        repetitions: Sequence[Callable[[], int] | None],
        state: State,
    ) -> None:
        self.inputs = parts
        self._node = node
        self._repetitions = repetitions
        self._parts = _Inputs(parts, "Dataset.mix")
        self._weights = whole_weights(node.weights)
        self._changes: deque[tuple[int, Weights]] = deque()
        """From which draw on other weights decide, and which: at last those of the node."""
        self._ended: list[int] = []
        self._before: Array = np.zeros(len(parts), np.int64)
        """What was drawn before the proportions changed last: a weight, or a source that ended."""
        counts = None if state is None else self._restore(state)
        self._order = self._order_from(counts)
        self._drawn = int(self._before.sum() + self._counts.sum())

    def _restore(self, state: State) -> list[int]:
        """Returns what was drawn in the present proportions."""
        # Operators may have to skip what was drawn when the state was saved: it comes again, by the
        # weights that decided it. Those may have changed, too, since the state was marked.
        spans = [[state["weights"], state["drawn"]], *state.get("then", ())]
        decided, own = [tuple(weights) for weights, _ in spans], self._weights
        self._weights = decided[0]
        if decided[-1] != own:
            decided.append(own)
        ends = accumulate((drawn for _, drawn in spans), max)
        self._changes.extend(zip(ends, decided[1:], strict=False))
        self._ended, self._before = list(state["ended"]), np.array(state["before"])
        return list(state["counts"])

    def _order_from(self, counts: list[int] | None) -> DrawOrder | None:
        """The order of the next draws; None if there are none."""
        ends = [self._node.on_end[number] for number in self._ended if self._weights[number]]
        left = list(self._weights)
        for number in self._ended:
            left[number] = 0
        if "stop" in ends or not any(left):
            return None
        return DrawOrder(whole_weights(left), counts)

    def pull(self, limit: int) -> Chunk:
        while (order := self._next_order()) is not None:
            if self._changes:
                limit = min(limit, self._changes[0][0] - self._drawn)
            supplies = self._parts.supply_all(order.peek(limit), (), skips=False)
            used = min(supply.cut for supply in supplies)
            failed = self._parts.give_back(supplies, used)
            order.advance(used if failed is None else 1)
            self._drawn += used if failed is None else 1
            if failed is not None:
                self._parts.feeds[failed.number].pull(1)  # Raises what was taken back.
            if (chunk := self._parts.merge(supplies, used)) is not None:
                return chunk
            self._end(next(supply.number for supply in supplies if supply.ended and not used))
        raise StopIteration

    def _next_order(self) -> DrawOrder | None:
        """The order of the next draws, by the weights that decide the next one."""
        while self._changes and (self._order is None or self._drawn >= self._changes[0][0]):
            self._before = self._before + self._counts
            _, self._weights = self._changes.popleft()
            self._order = self._order_from(None)
        return self._order

    def _end(self, number: int) -> None:
        """Source `number`, whose turn it is, has no more elements."""
        assert self._order is not None
        self._before = self._before + self._order.counts
        self._ended.append(number)
        self._order = self._order_from(None)
        if self._node.on_end[number] == "repeat":
            raise InvalidArgumentError(
                f"Dataset.mix: {self._node.names[number]!r} has no elements, so that it cannot be "
                'repeated; give it the weight 0, or on_end="drop"'
            )

    @property
    def _counts(self) -> Array:
        """What was drawn in the present proportions."""
        return np.zeros_like(self._before) if self._order is None else self._order.counts

    def count_drawn(self) -> list[tuple[int, int]]:
        """How many elements were drawn from each source, and how often each was read to its end."""
        elements = (self._before + self._counts).tolist()
        return [
            (count, int(number in self._ended) if repeats is None else repeats())
            for number, (count, repeats) in enumerate(zip(elements, self._repetitions, strict=True))
        ]

    def _own_state(self) -> State:
        """The state, with its weights, how many draws they decide, and what weights decide `then`.

        The last weights decide all draws that were made when the state is copied.
        """
        ends = [*(end for end, _ in self._changes), LazyState(lambda: self._drawn)]
        later = [list(weights) for _, weights in self._changes]
        then = [list(span) for span in zip(later, ends[1:], strict=True)]
        return {
            "weights": list(self._weights),
            "counts": self._counts.tolist(),
            "before": self._before.tolist(),
            "ended": list(self._ended),
            "drawn": ends[0],
            **({"then": then} if then else {}),
        }

    def _input_states(self) -> list[State]:
        return [feed.save() for feed in self._parts.feeds]


# Proportions: in which order `mix` draws from its sources, by whole numbers only.
#
# Source i with weight w of W in total has its m-th turn between the draws floor(m * W / w) and
# ceil((m + 1) * W / w). Of the sources whose turn has come, the one draws whose turn ends first. So
# after n draws a source has less than one element more or less than n * w / W.

_LONGEST_PERIOD = 1 << 16
_BLOCK = 4096
"""How many draws are planned at once."""

Weights = tuple[int, ...]


def whole_weights(weights: Sequence[float]) -> Weights:
    """The smallest whole numbers in the same proportions; 0.1 is a tenth exactly.

    >>> whole_weights([0.7, 0.2, 0.1]), whole_weights([3, 0, 6])
    ((7, 2, 1), (1, 0, 2))
    """
    exact = [Fraction(str(weight)) for weight in weights]
    scale = lcm(*(weight.denominator for weight in exact))
    whole = [int(weight * scale) for weight in exact]
    return tuple(weight // gcd(*whole) for weight in whole)


def draws(weights: Weights, counts: Sequence[int], length: int) -> list[int]:
    """The sources of the next `length` draws, after each source was drawn from `counts` times.

    >>> draws((2, 1), (0, 0), 6)
    [0, 0, 1, 0, 0, 1]
    """
    total, drawn = sum(weights), sum(counts)
    sources = [source for source, weight in enumerate(weights) if weight]
    begins = [count * total // (weight or 1) for weight, count in zip(weights, counts, strict=True)]
    ends = [-(-(n + 1) * total // (weight or 1)) for weight, n in zip(weights, counts, strict=True)]
    turns, order = list(counts), []
    for now in range(drawn, drawn + length):
        chosen, first = -1, 0
        for source in sources:
            if begins[source] <= now and (chosen < 0 or ends[source] < first):
                chosen, first = source, ends[source]
        order.append(chosen)
        turns[chosen] += 1
        begins[chosen] = turns[chosen] * total // weights[chosen]
        ends[chosen] = -(-(turns[chosen] + 1) * total // weights[chosen])
    return order


@lru_cache(maxsize=16)
def _one_period(weights: Weights) -> Array:
    """The draws until each source was drawn from as often as its weight, again and again."""
    period = np.array(draws(weights, [0] * len(weights), sum(weights)))
    return np.tile(period, -(-_BLOCK // len(period)))


class DrawOrder:
    """The sources of all draws from now on; at least one weight is not 0.

    `counts` are the draws from each source since these weights decide.
    """

    def __init__(self, weights: Weights, counts: Sequence[int] | None = None) -> None:
        self.weights = weights
        self.counts: Array = np.array(counts or [0] * len(weights))
        self._periodic = sum(weights) <= _LONGEST_PERIOD
        self._at = 0
        if self._periodic:
            self._block = _one_period(weights)
            self._at = int(self.counts.sum()) % sum(weights)
        else:
            self._block = self._plan_block()

    def _plan_block(self) -> Array:
        return np.array(draws(self.weights, self.counts.tolist(), _BLOCK))

    def peek(self, limit: int) -> Array:
        """The sources of the next 1 to `limit` draws."""
        if self._at == len(self._block):
            self._at = 0
            self._block = self._block if self._periodic else self._plan_block()
        return self._block[self._at : self._at + limit]

    def advance(self, count: int) -> None:
        """Counts the next `count` draws, which `peek` returned."""
        drawn = self._block[self._at : self._at + count]
        self.counts = self.counts + np.bincount(drawn, minlength=len(self.weights))
        self._at += count
