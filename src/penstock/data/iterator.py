"""Iterators: elements one by one, a state at any of them, and a profile of the operators.

A state counts the elements that the caller got, never prefetched ones.
"""

from __future__ import annotations

import atexit
import functools
import signal
import threading
import time
import warnings
import weakref
from collections import Counter
from collections.abc import Iterable
from collections.abc import Iterator as PythonIterator
from operator import length_hint
from typing import Any

from penstock.data.element_specs import plain
from penstock.data.states import (
    VERSION,
    check_state,
    move_state,
    with_plain_values,
    with_users_values,
)
from penstock.element.chunk import Chunk
from penstock.element.optional import Optional
from penstock.engine.caching import cache_of
from penstock.engine.context import Context, Environment
from penstock.engine.contract import State, Stream, copy_state, must_settle
from penstock.engine.endings import Ending
from penstock.engine.formats.remote_requests import RemoteUse, remote_use
from penstock.engine.inlets import Demand, MarkedInput, Place
from penstock.engine.lower import open_plan
from penstock.engine.meters import Meters
from penstock.engine.profiles import Profile, make_profile
from penstock.engine.tracebacks import fold, users_level
from penstock.errors import InvalidArgumentError, InvalidTypeError, OpError, OutOfRangeError
from penstock.plan import seeds
from penstock.plan.nodes import (
    Cache,
    IterationCounter,
    Node,
    Shuffle,
    Snapshot,
    is_shared,
    options_of,
    walk_plan,
)
from penstock.plan.optimize import prepare
from penstock.plan.resume import (
    draws_inside,
    is_served,
    local_structure,
    operators,
    seeds_of,
    structure,
    with_seeds,
)
from penstock.plan.seeds import derive
from penstock.plan.show import title

_NO_ROW = object()

Bookmark = tuple[Place, int | None]
"""A place in an iteration, and how many elements came before it."""

_SHARING: weakref.WeakSet[Iterator] = weakref.WeakSet()
"""Iterators over shared jobs: `close` reports what was used, also at the end of the program."""


@functools.cache
def _close_at_exit() -> None:
    # Functions registered last run first: this one before connections are closed.
    atexit.register(_close_all)


def _close_all() -> None:
    for iterator in list(_SHARING):
        iterator.close()


def _draw_key(plan: Node) -> int:
    """The key of random numbers inside datasets that functions make; below a shard, a constant."""
    return derive(0) if draws_inside(plan) and not seeds.is_reproducible() else seeds.draw()


class _SharedStream:
    """The open stream of an iteration that other readers share, and its unused elements."""

    def __init__(self, owner: Iterator, stream: Stream) -> None:
        self._stream = stream
        self.rows: PythonIterator[Any] = iter(())
        self.end = Ending(owner, self._close, atexit=False)

    def _close(self) -> None:
        left, remote = length_hint(self.rows), self._stream.remote
        if left and remote is not None:
            remote.give_back(left)
        self._stream.close()


class PublicNames:
    """A base of classes whose objects show their public names only, in `dir` and in notebooks."""

    def __dir__(self) -> Iterable[str]:
        return [name for name in super().__dir__() if not name.startswith("_")]


class Iterator(PublicNames):
    """Iterates over a dataset; made by `iter(dataset)`.

    >>> import penstock
    >>> iterator = iter(penstock.data.Dataset.range(5))
    >>> next(iterator), next(iterator)
    (np.int64(0), np.int64(1))
    >>> state = iterator.state_dict()
    >>> other = iter(penstock.data.Dataset.range(5))
    >>> other.load_state_dict(state)
    >>> list(other)
    [np.int64(2), np.int64(3), np.int64(4)]
    >>> fresh = iter(penstock.data.Dataset.range(1))
    >>> fresh.get_next(), fresh.get_next_as_optional().has_value()
    (np.int64(0), False)
    >>> fresh.close()
    """

    def __init__(
        self, plan: Node, environment: Environment, iterations: IterationCounter | None = None
    ) -> None:
        self._written = plan
        self._environment = environment
        self._iterations = IterationCounter() if iterations is None else iterations
        self._iteration = self._iterations.begin()
        self._key = _draw_key(plan)
        self._at: State = None
        self._count: int | None = 0
        """How many elements the caller got before the first of `_rows`; None if that is unknown."""
        self._is_resumed = False
        self._lock = threading.Lock()
        """Held while a thread opens or pulls the streams: one chunk is pulled at a time, and no
        element is yielded twice. `close` does not take it, because it must not wait for a pull."""
        self._reset()

    def _reset(self) -> None:
        self._plan = prepare(self._written)
        self._meters = Meters()
        self._use = RemoteUse(self._meters.retries, cache_of(options_of(self._written)))
        self._metered = self._plan
        """The plan whose operators have meters."""
        self._opened = self._ended = 0.0
        """When the streams were opened and closed, by the clock of `perf_counter`."""
        self._waited = 0.0
        """For how many seconds the caller has waited for elements."""
        self._waits_since: float | None = None
        """When the wait began that is not over."""
        self._stream: Stream | None = None
        self._shared: _SharedStream | None = None
        self._rows: PythonIterator[Any] = iter(())
        self._size = 0
        self._place = Place(self._at)
        self._demand = Demand()
        self._closed = False
        self._exhausted = False

    def __iter__(self) -> Iterator:
        return self

    def __next__(self) -> Any:
        row = next(self._rows, _NO_ROW)
        if row is not _NO_ROW:
            return row
        try:
            return self._refill_and_next()
        except OpError as error:
            raise fold(error, unless="PENSTOCK_TRACEBACK=full") from error.__cause__

    def _refill_and_next(self) -> Any:
        """Pulls under the lock: several threads may iterate, and take what another one pulled."""
        with self._lock:
            while (row := next(self._rows, _NO_ROW)) is _NO_ROW:
                self._refill()
            return row

    def _refill(self) -> None:
        """Pulls the next chunk; StopIteration at the end."""
        if self._closed:
            raise StopIteration
        if self._stream is None:
            self._open_stream()
        self._add_to_count(self._size)
        self._size = 0
        self._place = self._marked.place()
        started = self._waits_since = time.perf_counter()
        before = remote_use.set(self._use)
        try:
            chunk = self._marked.pull(self._demand.limit)
        except StopIteration:
            if (stream := self._stream) is not None:  # No other thread has closed it meanwhile.
                self._place = Place(stream.save())
                self._close_stream()
                self._exhausted = True
                if self._is_first_epoch:
                    _note_first_pass(self._written, type(self))
            raise
        except Exception:
            if self._closed:  # Closed by another thread meanwhile.
                raise StopIteration from None
            self._place = self._place.after(1)
            self._add_to_count(1)
            raise
        except BaseException:
            # Interrupted: the streams lost what they were computing, so open them here again.
            self._stream, self._at = None, self._place.state
            if self._shared is not None:
                self._shared.end.forget()
                self._shared = None
            raise
        finally:
            remote_use.reset(before)
            # Closing the streams at the end takes time, too, which `profile` does not count.
            seconds = max(0.0, (self._ended or time.perf_counter()) - started)
            self._waits_since = None
            self._waited += seconds
        self._demand.record(chunk, seconds)
        self._rows = self._elements(chunk)
        self._size = chunk.size
        if (shared := self._shared) is not None:
            shared.rows = self._rows

    def _add_to_count(self, elements: int) -> None:
        if self._count is not None:
            self._count += elements

    def _open_stream(self) -> None:
        # Ctrl-C ends a call that waits. A library with a handler of its own (polars) may have had
        # such calls begin again instead.
        signal.siginterrupt(signal.SIGINT, True)
        if self._is_first_epoch:
            _warn_of_same_order(self._written, type(self))
        if not self._opened:
            self._opened = time.perf_counter()
        self._stream = self._streams(
            Context(
                self._environment,
                epoch=(self._iteration,),
                key=self._key,
                options=options_of(self._written),
                meters=self._meters,
            )
        )
        self._marked = MarkedInput(self._stream)
        if is_shared(self._plan):
            self._shared = _SharedStream(self, self._stream)
            _SHARING.add(self)
            _close_at_exit()

    @property
    def _is_first_epoch(self) -> bool:
        """Whether this iteration is the dataset's first one, and was not resumed."""
        return self._iteration == 0 and not self._is_resumed

    def _streams(self, context: Context) -> Stream:
        """Opens the plan at the position of the iteration."""
        return open_plan(self._plan, self._at, context)

    def _elements(self, chunk: Chunk) -> PythonIterator[Any]:
        """The elements of a chunk, as the caller gets them."""
        return iter(chunk.elements())

    def get_next(self) -> Any:
        """The next element; `OutOfRangeError` at the end."""
        try:
            return next(self)
        except StopIteration:
            raise OutOfRangeError("Iterator.get_next: End of sequence") from None

    def get_next_as_optional(self) -> Optional:
        """The next element as an `Optional`, which is empty at the end."""
        try:
            return Optional(next(self), lambda: self.element_spec)
        except StopIteration:
            return Optional.empty(lambda: self.element_spec)

    @property
    def element_spec(self) -> Any:
        return self._environment.spec(self._written)

    def state_dict(self) -> dict[str, Any]:
        """The position of the iteration, as plain values for JSON.

        It is small, unless operators hold elements, as a `shuffle` without random access does.
        """
        if self._stream is None and not self._closed and is_shared(self._plan):
            # Other readers take what is not leased, so a position exists only once it is opened.
            with self._lock:
                self._open_stream()
        return self._describe(self._bookmark())

    def _bookmark(self) -> Bookmark:
        """Marks the element that the caller gets next; `_describe` makes a state of it."""
        if self._stream is not None and (remote := self._stream.remote) is not None:
            remote.commit(length_hint(self._rows))
        return self._find_place(), self.position

    def _describe(self, bookmark: Bookmark) -> dict[str, Any]:
        place, count = bookmark
        state = {
            "version": VERSION,
            "plan": self._structure,
            "operators": list(self._operators),
            "iteration": self._iteration,
            "key": self._key,
            "seeds": seeds_of(self._written),
            "count": count,
            "at": copy_state(place.state),
        }
        if is_served(self._plan):
            state["local"] = self._local_structure
        return with_plain_values(state)

    @property
    def position(self) -> int | None:
        """How many elements came before the next one, also before the state that was loaded.

        Elements that failed count, too. None if the state does not say it: a state of an earlier
        version, or of `service.merge_states`.

        >>> import penstock
        >>> dataset = penstock.data.Dataset.range(5)
        >>> iterator = iter(dataset)
        >>> first, second = next(iterator), next(iterator)
        >>> other = iter(dataset)
        >>> other.load_state_dict(iterator.state_dict())
        >>> third = next(other)
        >>> other.position
        3
        """
        return None if self._count is None else self._count + self._taken_count

    @property
    def epoch(self) -> int:
        """Which iteration over the dataset this is, from 0; a loaded state brings its own number.

        The passes of a `repeat` belong to one iteration. After `load_state_dict`, the next
        `iter(dataset)` has the number after the loaded one.

        >>> import penstock
        >>> dataset = penstock.data.Dataset.range(2)
        >>> first = list(dataset)
        >>> iterator = iter(dataset)
        >>> iterator.epoch
        1
        >>> resumed = iter(penstock.data.Dataset.range(2))
        >>> resumed.load_state_dict(iterator.state_dict())
        >>> resumed.epoch
        1
        """
        return self._iteration

    @property
    def _is_at_end(self) -> bool:
        """Whether no element is left, as far as that is known before the next one is requested."""
        return self._exhausted or length_hint(self, 1) == 0

    def __length_hint__(self) -> int:
        """How many elements are left, if that is known: for `operator.length_hint`."""
        count, position = self._written.cardinality, self.position
        return NotImplemented if count < 0 or position is None else max(count - position, 0)

    @property
    def _taken_count(self) -> int:
        """How many elements of the last chunk the caller got."""
        return self._size - length_hint(self._rows)

    @functools.cached_property
    def _structure(self) -> str:
        return structure(self._plan)

    @functools.cached_property
    def _local_structure(self) -> str | None:
        return local_structure(self._written)

    @functools.cached_property
    def _operators(self) -> list[str]:
        return operators(self._plan)

    def _find_place(self) -> Place:
        """The place of the element that the caller gets next."""
        left = length_hint(self._rows)
        if not left and self._stream is not None and must_settle(self._stream):
            return Place(self._stream.save())
        return self._place.after(self._taken_count)

    def load_state_dict(self, state: Any) -> None:
        """Continues from `state`, with exactly the rest of the sequence."""
        if isinstance(state, dict) and "rule" in state:
            raise InvalidArgumentError(
                "Iterator.load_state_dict: this is the state of a distributed iterator"
            )
        state = move_state(with_users_values(state), self._plan, self._written)
        check_state(state, self._plan, self._written)
        self.close()
        self._written = with_seeds(self._written, state["seeds"])
        self._resume(state, state["at"])

    def _resume(self, state: dict[str, Any], at: State) -> None:
        self._is_resumed = True
        self._iteration, self._key, self._at = state["iteration"], state["key"], at
        self._count = state.get("count", at if isinstance(at, int) else None)
        self._iterations.resume(self._iteration)
        self._reset()

    def profile(self) -> Profile:
        """The time and the elements of each operator so far.

        Printed, it names the bottleneck and says what would help. If workers of a service run a
        part of the plan, it has their operators, too.

        >>> import penstock
        >>> iterator = iter(penstock.data.Dataset.range(9).map(lambda x: x + 1).batch(3))
        >>> batches = list(iterator)
        >>> [(row.operator, row.elements) for row in iterator.profile().operators]
        [('batch', 3), ('map', 9), ('range', 9)]
        """
        until, since = self._ended or time.perf_counter(), self._waits_since
        seconds = until - self._opened if self._opened else 0.0
        waited = self._waited if since is None else self._waited + until - since
        return make_profile(self._meters, self._metered, seconds, waited)

    def close(self) -> None:
        """Ends the iteration and its threads; calling it again does nothing."""
        # Counted, not asked of the streams: `save` might block.
        self._place = self._place.after(self._taken_count)
        self._add_to_count(self._taken_count)
        self._rows, self._size = iter(()), 0
        self._close_stream()

    def _close_stream(self) -> None:
        stream, shared = self._stream, self._shared
        self._stream = self._shared = None
        if not self._closed:
            self._ended = time.perf_counter()
        self._closed = True
        if shared is not None:
            shared.end()
        elif stream is not None:
            stream.close()

    def __enter__(self) -> Iterator:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        raise InvalidTypeError(
            "Iterator: cannot be pickled; save iterator.state_dict() and load it into iter(dataset)"
        )

    def __repr__(self) -> str:
        return f"<{type(self).__name__} over {self._written.label}>"


class NumpyIterator(Iterator):
    """Elements as plain NumPy values: a ragged value is an object array of rows.

    >>> import penstock
    >>> iterator = penstock.data.Dataset.range(5).as_numpy_iterator()
    >>> next(iterator), iterator.position, iterator.epoch
    (np.int64(0), 1, 0)
    >>> iterator.profile().operators[0].name
    'range'
    >>> state = iterator.save()
    >>> next(iterator), iterator.restore(state), next(iterator)
    (np.int64(1), None, np.int64(1))
    """

    def __next__(self) -> Any:
        return plain(Iterator.__next__(self))  # `super()` would take 0.1 µs more per element.

    next = __next__
    save = Iterator.state_dict
    restore = Iterator.load_state_dict


# Warnings of equal epochs. Each dataset counts its own: in `for batch in shuffled.batch(32)` inside
# a loop over epochs, each pass of the loop makes a new dataset, whose first epoch has the order of
# the epoch before.

_PASSES = "_passes"
"""Where a `Shuffle` counts the first epochs of plans over it that were read to their end."""


def _note_first_pass(plan: Node, kind: type) -> None:
    """Notes that an iterator yielded all elements of a plan, in the order of its first epoch."""
    for shuffle in _find_reshuffles(plan):
        _passes_of(shuffle)[_describe_pass(plan, kind)] += 1


def _warn_of_same_order(plan: Node, kind: type) -> None:
    """Warns before the first epoch of a dataset, if an equal one had the same order before.

    Both were made of one shuffled dataset. It warns at the second pass only, not at later ones.
    """
    noted = [passes for shuffle in _find_reshuffles(plan) if (passes := _passes_of(shuffle))]
    if not noted:
        return
    text = _describe_pass(plan, kind)
    if not any(passes[text] == 1 for passes in noted):
        return
    warnings.warn(
        "Dataset.shuffle: this epoch has the same order as the one before, because a new dataset "
        f"was made of the shuffled one for it ({plan.label}), and every dataset counts its own "
        "epochs; make the dataset once, before the loop over the epochs, and iterate over it in "
        "each of them; if the order is meant to be the same, pass reshuffle_each_iteration=False",
        stacklevel=users_level(),
    )


def _find_reshuffles(plan: Node) -> PythonIterator[Shuffle]:
    """The shuffles in a plan that draw another order in each epoch."""
    if isinstance(plan, Shuffle) and plan.reshuffle:
        yield plan
    if not plan.sealed and not isinstance(plan, Cache | Snapshot):
        for part in plan.inputs:
            yield from _find_reshuffles(part)


def _passes_of(shuffle: Shuffle) -> Counter[str]:
    found: Counter[str] = shuffle.__dict__.setdefault(_PASSES, Counter())
    return found


def _describe_pass(plan: Node, kind: type) -> str:
    """Equal for plans with the same operators and functions, and the same kind of iterator."""
    return "\n".join([kind.__name__, *map(title, walk_plan(plan))])
