"""The streams that a worker runs on the engine, each for all tasks that read it.

Users' functions run without any lock. So a task gets elements that are there at once, however long
the function takes that another task waits for. A stream must be the same on every worker and every
time, so no stream sees what another one has cached.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any
from weakref import WeakValueDictionary

import msgspec

from penstock.element.chunk import Chunk
from penstock.engine.caching import with_cache
from penstock.engine.context import Context, Environment
from penstock.engine.contract import State, Stream, copy_state
from penstock.engine.inlets import Demand
from penstock.engine.lower import open_plan
from penstock.engine.meters import Meters
from penstock.engine.numbering import counting_of
from penstock.engine.state_values import decode, encode
from penstock.engine.trail import Trail, turn_of
from penstock.engine.tuning import machine_memory
from penstock.errors import (
    DeadlineExceededError,
    InvalidArgumentError,
    OpError,
    ResourceExhaustedError,
    UnavailableError,
)
from penstock.plan.bounds import bound_plan
from penstock.plan.nodes import Cache, Node, Shard, Store, options_of, walk_plan
from penstock.plan.optimize import prepare
from penstock.plan.shape import PARTIAL_FORMS, Form
from penstock.plan.splits import piece
from penstock.service.host.runtime import Runtime
from penstock.service.host.telemetry import FailureLog, OpenedMeters, add_work
from penstock.service.logic.worker import (
    TAIL,
    Action,
    Block,
    BlockBudget,
    ConsumerPace,
    Cursor,
    DecodedMark,
    End,
    Make,
    Production,
    Serve,
    Wait,
    WantedElements,
)
from penstock.service.protocol import timing
from penstock.service.protocol.data_messages import (
    LARGE_STATE,
    CachedPart,
    Fault,
    Mark,
    fault_in_piece,
    fault_of,
)
from penstock.service.protocol.messages import Work, WorkStatus

KEPT = 256 << 20
"""Bytes that a worker keeps of streams that several clients read."""

_MOVED = 8
"""Of its memory, a worker uses one part in so many for states that workers which left have handed
to it and that no client has read."""

_TAILS = 64 << 20
"""Bytes that a worker keeps of all other streams together, for clients that fetch again."""

_CHUNK = 4 << 20
"""About the bytes that are computed at once."""


class WorkerStopsError(UnavailableError):
    """This worker stops: no element has failed, and clients request elements from other workers."""

    def __init__(self) -> None:
        super().__init__("distribute: this worker stops; ask another one")


_MARK_FRAMES = 64
"""A worker saves the state of a stream after so many chunks, or after `timing.MARK`."""

_MARK_SHARE = 20
"""Saving states takes at most one part in so many of the time."""


@dataclass(frozen=True)
class StreamPlan:
    """The plan of one stream, ready to be opened."""

    plan: Node
    context: Context
    meters: OpenedMeters = field(default_factory=OpenedMeters)
    """What its operators do, whenever it is opened."""

    @property
    def random(self) -> bool:
        """Whether it can be opened at any position."""
        return self.plan.blocked is None

    @property
    def longest(self) -> int | None:
        """The number of elements, if it is known and the plan has random access."""
        return self.plan.cardinality if self.random and self.plan.cardinality >= 0 else None

    @cached_property
    def stores(self) -> tuple[Store, ...]:
        """What its caches hold in memory, in the order of the plan."""
        nodes = walk_plan(self.plan, into_services=False)
        return tuple(node.store for node in nodes if isinstance(node, Cache) and not node.filename)

    def open(self, state: State, stop: int | None = None, trail: Trail | None = None) -> Stream:
        """Opens the stream at a state; with random access, at a position and up to `stop`.

        The stream writes into `trail` what it finds out about its source.
        """
        plan = self.plan if stop is None else bound_plan(self.plan, stop)
        meters = Meters()
        opened = open_plan(plan, state, replace(self.context, trail=trail, meters=meters))
        self.meters.add(plan, meters, opened, written=self.plan)
        return with_cache(opened, self.context.options)


def plan_stream(plan: Node, work: Work, environment: Environment) -> StreamPlan:
    """Returns the plan of the stream of `plan` that `work` describes.

    With random access, the elements of one consumer are a plan of their own.
    """
    own = piece(
        plan,
        work.form,
        stream=work.stream,
        streams=work.streams,
        policy=work.policy,
        begin=work.begin,
        inputs=work.inputs,
    )
    part = with_private_caches(own)
    ready = prepare(part)
    if ready.blocked is None and work.consumers > 1:
        ready = prepare(Shard(part, work.consumers, work.consumer))
    # Every copy of the whole plan is shuffled in an order of its own.
    copy = (work.stream,) if work.form == Form.WHOLE and work.stream > 0 else ()
    context = Context(
        environment=environment,
        epoch=(*work.epoch, *copy),
        first_epoch=(*(0 for _ in work.epoch), *copy),
        key=work.key,
        options=options_of(plan),
        numbered=work.form == Form.TURNS,
    )
    return StreamPlan(ready, context)


def with_private_caches(node: Node) -> Node:
    """Returns the plan with memory caches that no other stream shares."""
    if node.sealed:
        return node
    node = node.with_inputs(tuple(map(with_private_caches, node.inputs)))
    return replace(node, store=Store()) if isinstance(node, Cache) else node


def encode_state(ordinal: int, state: State, most: int = LARGE_STATE) -> bytes | None:
    """Returns a state before element `ordinal` as bytes; None if it cannot travel.

    That is so if it is larger than `most` bytes, or has objects that only pickle could save.
    """
    if measure_state(state, most) > most:
        return None
    # Workers of releases that cannot decode users' values pass over a mark with a third part.
    parts = [ordinal, state] if is_plain(state) else [ordinal, encode(state, as_text=False), True]
    encoded = msgspec.msgpack.encode(parts) if is_plain(parts) else None
    return encoded if encoded is not None and len(encoded) <= most else None


def decode_state(encoded: bytes) -> tuple[int, State]:
    """Returns the arguments of the `encode_state` that returned `encoded`."""
    ordinal, state, *has_users_values = msgspec.msgpack.decode(encoded)
    return ordinal, decode(state) if has_users_values else state


def measure_state(state: Any, most: int) -> int:
    """About the bytes of a state, at least its values: one beyond `most` is not even encoded."""
    if isinstance(state, dict | list | tuple):
        parts = state.values() if isinstance(state, dict) else state
        inside = sum(measure_state(part, most) for part in parts) if len(parts) <= most else 0
        return len(parts) + inside
    return getattr(state, "nbytes", 0) or (len(state) if isinstance(state, str | bytes) else 1)


def is_plain(state: Any) -> bool:
    """Whether a state has only numbers and texts. A tuple would come back as a list."""
    kind = type(state)
    if kind is dict:
        return all(type(name) is str and is_plain(part) for name, part in state.items())
    if kind is list:
        return all(map(is_plain, state))
    if kind is int:
        return bool(-(1 << 63) <= state < 1 << 64)
    return state is None or kind in (bool, float, str, bytes)


IsCancelled = Callable[[], bool]


@dataclass(frozen=True, slots=True)
class CachedElements:
    """What a cache holds in memory: all elements if it `is_full`, else those of a begun pass."""

    chunks: list[Chunk]
    is_full: bool


@dataclass(frozen=True, slots=True)
class CursorResult:
    """What a cursor computed at once, and the state before it, if one was saved."""

    content: Chunk | Fault
    mark: bytes | None
    seconds: float
    place: int | None = None
    """Of a fault: its place among the inputs of an `interleave`, if it has one (see `trail`)."""


class StreamPool:
    """The streams of a worker, the lock that guards them, and the bytes that they keep."""

    def __init__(self, address: str, kept: int, runtime: Runtime) -> None:
        self.address = address
        self.failures = FailureLog(address)
        self.runtime = runtime
        self.lock = runtime.lock()
        self.streams: dict[Hashable, WorkerStream] = {}
        """By name; guarded by `lock`."""
        self.most_moved = machine_memory() // _MOVED
        """Bytes of states of workers that left, until clients read their streams."""
        self.demands: WeakValueDictionary[str, Demand] = WeakValueDictionary()
        """How much is computed at once, by job: its streams are alike, and may be short."""
        self.budgets = {True: BlockBudget(kept), False: BlockBudget(_TAILS)}
        """For streams that several clients read, and for all other streams; guarded by `lock`."""

    def allowance(self) -> int:
        """The bytes by which a coordinated read may be ahead of its slowest consumer."""
        paced = sum(stream.production.pace is not None for stream in self.streams.values())
        return TAIL + self.budgets[True].limit // max(1, paced)

    def reserve(self, stream: WorkerStream, nbytes: int, cache: int | None = None) -> None:
        """Counts bytes that another worker sends: of the state of a stream, or of a `cache` of it.

        Raises ResourceExhaustedError if there are too many.
        """
        with self.lock:
            held = nbytes + sum(s.moved_bytes for s in self.streams.values())
            if held <= self.most_moved:
                stream.moved[cache] += nbytes
                return
        raise ResourceExhaustedError(
            f"distribute: worker {self.address} would hold {held / 1e6:.0f} MB of states of "
            f"workers that left, and may hold {self.most_moved / 1e6:.0f} MB; use smaller buffers"
        )

    def keep(self, stream: WorkerStream, block: Block) -> None:
        """Counts a block that its stream keeps; drops older blocks if there are too many bytes."""
        budget = self.budgets[stream.production.kept]
        if stream.production.pace is None:
            budget.add(stream.name, block.start, block.nbytes)
        self.trim(stream)
        for name, start in budget.excess():
            self.streams[name].production.blocks.drop(start)
            budget.remove(name, start)

    def touch(self, stream: WorkerStream, block: Block) -> None:
        """Notes that a block was used."""
        self.budgets[stream.production.kept].touch(stream.name, block.start)

    def trim(self, stream: WorkerStream) -> None:
        """Drops the blocks of a stream that no client waits for."""
        for start in stream.production.droppable():
            stream.production.blocks.drop(start)
            self.budgets[stream.production.kept].remove(stream.name, start)

    def forget(self, stream: WorkerStream) -> None:
        """Removes a stream that is closed, and its blocks from the budgets."""
        if self.streams.get(stream.name) is stream:
            del self.streams[stream.name]
            self.budgets[stream.production.kept].clear(stream.name)


class WorkerStream:
    """One stream of a worker, shared by all tasks that read it.

    The lock of the pool guards all fields that change. A cursor belongs to the thread that computes
    with it, until that thread hands it back to `production`.
    """

    def __init__(self, pool: StreamPool, name: Hashable, plan: StreamPlan, work: Work) -> None:
        self.name = name
        self.job = work.job
        self.plan = plan
        self.demand = pool.demands.setdefault(work.job, Demand(nbytes=_CHUNK))
        self.readers = 0
        self.idle_since = 0.0
        self._done = WorkStatus(work.job, 0, 0.0)
        self._running: dict[object, float] = {}
        """Until when each call that runs was counted."""
        self._ahead = 0.0
        """Seconds of running calls that `take_work` returned already."""
        strided = work.consumers > 1
        pace = ConsumerPace(work.consumers) if strided and not plan.random else None
        # With random access, each consumer has a stream of its own.
        kept = work.kept and not (strided and plan.random)
        self.production = Production(plan.random, kept, pace, plan.longest)
        self.moved: Counter[int | None] = Counter()
        """Bytes that a worker which left has sent, until a client reads the stream: by the number
        of the cache, and None for the state."""
        self.trail = Trail()
        """What its cursors found out about the source; all of them find the same."""
        self._pool = pool
        self._is_partial = work.form in PARTIAL_FORMS
        """Whether the worker does not know how many elements come before those of its stream."""
        self.used: dict[str, int] | None = None
        """At the end of a piece: how many elements its operators have used, by their keys."""
        self._timer = pool.runtime.timer
        self._changed = pool.runtime.condition(pool.lock)
        """Uses the lock of the pool; notified when a cursor becomes free, and at the end."""
        self._closed = False
        self.is_handed_over = False
        """Whether another worker continues it; then this one begins no element."""

    @property
    def is_unshared(self) -> bool:
        """Whether every task computes its own elements, which no other task reads."""
        return self.plan.random and not self.production.kept

    @property
    def is_finished(self) -> bool:
        """Whether its end was reached and it keeps no elements for other clients."""
        production = self.production
        return production.length is not None and not production.kept and production.pace is None

    def record_work(self, elements: int, seconds: float, nbytes: int) -> None:
        """Counts what was made, for the next heartbeat."""
        with self._changed:
            counted = min(self._ahead, seconds)
            self._ahead -= counted
            more = WorkStatus(self.job, elements, seconds - counted, nbytes=nbytes)
            self._done = add_work(self._done, more)

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Counts the time of the block while it runs: a call may take minutes, or hang."""
        call = object()
        with self._changed:
            self._running[call] = self._timer()
        try:
            yield
        finally:
            with self._changed:
                del self._running[call]

    @property
    def has_work(self) -> bool:
        """Whether something was made since the last `take_work`."""
        return bool(self._done.elements)

    def take_work(self) -> WorkStatus:
        """Returns what was made since the last call; the caller holds the lock of the pool."""
        done, self._done = self._done, WorkStatus(self.job, 0, 0.0)
        now = self._timer()
        seconds = sum(now - since for since in self._running.values())
        self._running = dict.fromkeys(self._running, now)
        self._ahead += seconds
        return add_work(done, WorkStatus(self.job, 0, seconds))

    def _count_used(self, trail: Trail) -> dict[str, int]:
        found = [(counting_of(self.plan.plan, node), count) for node, count in trail.calling]
        return {own.key: count() - own.first for own, count in found if own is not None}

    def add_mark(self, mark: Mark | None) -> None:
        """Adds a mark that a client received from another worker."""
        if mark is None or self.plan.random:
            return
        try:
            ordinal, state = decode_state(mark.state)
        except (msgspec.MsgspecError, ValueError, TypeError):
            return  # Without the mark, the stream is computed from its start.
        self.add_state(DecodedMark(ordinal, state, small=not mark.is_large))

    def add_state(self, mark: DecodedMark) -> None:
        """Adds a state that another worker saved."""
        with self._changed:
            self.production.marks.add(mark)

    @property
    def moved_bytes(self) -> int:
        """Bytes that a worker which left has sent, until a client reads the stream."""
        return self.moved.total()

    def list_cached(self) -> list[CachedElements]:
        """What its caches hold in memory, or have recorded so far."""
        return [CachedElements(*store.list_chunks()) for store in self.plan.stores]

    def add_cached(self, part: CachedPart) -> None:
        """Adds elements that a cache of another worker holds.

        If there is no room, it drops those that are there: they are of no use without the others.
        """
        try:
            self._pool.reserve(self, len(part.elements), part.cache)
        except ResourceExhaustedError:
            self._drop_cached(part.cache)
            raise
        elements = decode(msgspec.msgpack.decode(part.elements)) if part.elements else None
        if elements is not None and not isinstance(elements, Chunk):
            raise InvalidArgumentError("distribute: what a cache holds arrived damaged")
        chunk = None if elements is None else elements.as_read_only()
        stores = self.plan.stores
        if not 0 <= part.cache < len(stores) or not stores[part.cache].add(
            part.start, chunk, part.is_full
        ):
            raise InvalidArgumentError(
                f"distribute: elements of cache {part.cache} from {part.start} on, but this worker "
                "does not have the elements before them"
            )

    def _drop_cached(self, cache: int) -> None:
        with self._changed:
            del self.moved[cache]
        if 0 <= cache < len(self.plan.stores):
            self.plan.stores[cache].drop_moved()

    def get_block(self, want: WantedElements, is_cancelled: IsCancelled) -> Block | None:
        """Returns the block with element `want.at`; None at the end, or if the fetch is cancelled.

        Computes it, or blocks while another thread does. A block that is there is returned even if
        the fetch is cancelled.
        """
        while True:
            begins = not is_cancelled()
            with self._changed:
                match self._decide(want, begins):
                    case Serve(block):
                        self._pool.touch(self, block)
                        return block
                    case End():
                        return None
                    case Wait() if not begins:
                        return None
                    case Wait():
                        self._changed.wait(timing.STREAM_POLL)
                        continue
                    case Make(cursor, most):
                        pass
            computed = self._compute(cursor, most)
            if computed is not None and computed.start <= want.at < computed.stop:
                return computed

    def _decide(self, want: WantedElements, begins: bool) -> Action:
        if self._closed:
            raise WorkerStopsError
        self.moved.clear()
        self._pool.trim(self)
        allowance = 0 if self.production.pace is None else self._pool.allowance()
        return self.production.decide(want, self._pool.runtime.now(), allowance, begins)

    def has_block(self, ordinal: int) -> bool:
        """Whether element `ordinal` is there."""
        with self._changed:
            return self.production.blocks.find(ordinal) is not None

    def _compute(self, cursor: Cursor, most: int) -> Block | None:
        """Computes up to `most` elements without the lock, and keeps them if they are to be kept.

        Returns None at the end of the stream, or if the cursor could not be opened.
        """
        block = None
        try:
            result = self._pull(cursor, most)
        except StopIteration:
            self._record_end(cursor)
        except BaseException as error:
            if not self._discard(cursor, error):
                raise
        else:
            block = self._keep(cursor, result)
        finally:
            self._close_retired()
        return block

    def _record_end(self, cursor: Cursor) -> None:
        with self._changed:
            self.trail.part(cursor.trail.began, cursor.trail.ended)
            self.trail.count, self.trail.inputs = cursor.trail.count, cursor.trail.inputs
            if self._is_partial:
                self.used = self._count_used(cursor.trail)
            self.production.record_end(cursor)
            self._changed.notify_all()

    def _pull(self, cursor: Cursor, most: int) -> CursorResult:
        if cursor.stream is None:
            cursor.trail = Trail()
            cursor.stream = self.plan.open(cursor.state, cursor.stop, cursor.trail)
            cursor.state = None
        mark = None if self.plan.random else self._save_mark(cursor)
        started, place = self._timer(), None
        content: Chunk | Fault
        try:
            with self.running():
                content = cursor.stream.pull(min(most, self.demand.limit))
        except (StopIteration, WorkerStopsError):
            raise
        except Exception as error:
            self._pool.failures.note(error, self.job)
            content = self._fault(error)
            place = turn_of(error)
        seconds = self._timer() - started
        if isinstance(content, Chunk):
            self.demand.record(content, seconds)
        cursor.unmarked += seconds
        cursor.frames += 1
        return CursorResult(content, mark, seconds, place)

    def _fault(self, error: Exception) -> Fault:
        if not self._is_partial:
            return fault_of(error, self._pool.address)
        counted = error.counted if isinstance(error, OpError) else None
        counting = None if counted is None else counting_of(self.plan.plan, counted[0])
        return fault_in_piece(error, self._pool.address, counting)

    def _save_mark(self, cursor: Cursor) -> bytes | None:
        """Saves the cursor's state if a mark is due; returns it as bytes if it can travel."""
        due = cursor.unmarked >= timing.MARK or cursor.frames >= _MARK_FRAMES
        if not due or cursor.unmarked < _MARK_SHARE * cursor.cost:
            return None
        started = self._timer()
        state = copy_state(cursor.stream.save())
        encoded = encode_state(cursor.at, state)
        cursor.cost = self._timer() - started
        cursor.unmarked, cursor.frames = 0.0, 0
        with self._changed:
            self.production.marks.add(DecodedMark(cursor.at, state, encoded is not None))
        return encoded

    def save_at(self, ordinal: int, most: int) -> bytes | None:
        """The state before element `ordinal`, if an idle cursor is there and it can travel.

        `most`: the bytes that it may have. Without it, another worker computes the stream again
        from an earlier mark, or from its start.
        """
        with self.hold_cursor(ordinal) as cursor:
            if cursor is None:
                return None
            try:
                encoded = encode_state(ordinal, copy_state(cursor.stream.save()), most)
            except Exception as error:
                self.warn_of_state(type(error).__name__)
                return None
        if encoded is None:
            self.warn_of_state("it is too large, or has objects")
        return encoded

    def warn_of_state(self, reason: str) -> None:
        """Warns that this worker leaves and cannot hand over the state of this stream."""
        self._pool.failures.warn_of_state(reason, self.job)

    @property
    def worker(self) -> str:
        """The address of this worker."""
        return self._pool.address

    @contextlib.contextmanager
    def hold_cursor(self, ordinal: int) -> Iterator[Cursor | None]:
        """An idle cursor before element `ordinal`, which no other thread uses meanwhile."""
        with self._changed:
            cursor = next((c for c in self._idle_cursors() if c.at == ordinal), None)
            if cursor is not None:
                cursor.busy = True
        try:
            yield cursor
        finally:
            if cursor is not None:
                with self._changed:
                    cursor.busy = False
                    self._changed.notify_all()
                self._close_retired()

    @contextlib.contextmanager
    def between_elements(self, until: float) -> Iterator[Cursor | None]:
        """The cursor that was used last, when no element is computed; None if there is none.

        No element is begun before the block ends. Raises DeadlineExceededError at `until`.
        """
        cursor = None
        with self._changed:
            self.production.is_paused = True
        try:
            with self._changed:
                left = until - self._pool.runtime.now()
                if not self._changed.wait_for(self._is_idle, max(0.0, left)):
                    raise DeadlineExceededError("it takes too long")
                idle = self._idle_cursors() if self.readers else []
                if idle:
                    cursor = idle[-1]
                    cursor.busy = True
            yield cursor
        finally:
            with self._changed:
                if cursor is not None:
                    cursor.busy = False
                self.production.is_paused = self.is_handed_over
                self._changed.notify_all()
            self._close_retired()

    def _is_idle(self) -> bool:
        return not any(cursor.busy for cursor in self.production.cursors)

    def find_idle(self) -> int | None:
        """Where the cursor is that was used last, if it is idle."""
        with self._changed:
            idle, cursors = self._idle_cursors(), self.production.cursors
            return idle[-1].at if idle and idle[-1] is cursors[-1] else None

    def _idle_cursors(self) -> list[Cursor]:
        return [c for c in self.production.cursors if not c.busy and c.stream is not None]

    @property
    def has_cursors(self) -> bool:
        """Whether clients read it, and have not come to its end."""
        with self._changed:
            return bool(self.readers and self.production.cursors)

    def _keep(self, cursor: Cursor, result: CursorResult) -> Block:
        content = result.content
        count = len(content) if isinstance(content, Chunk) else 1
        with self._changed:
            self.trail.part(cursor.trail.began, None)
            block, kept = self.production.add_block(cursor, count, content.nbytes, result)
            self.record_work(count, result.seconds, content.nbytes)
            if kept is not None and not self._closed:
                self._pool.keep(self, kept)
            self._changed.notify_all()
        return block

    def _discard(self, cursor: Cursor, error: BaseException) -> bool:
        """Retires a cursor that raised `error`; returns whether an earlier mark may work instead.

        That is so if its state could not be opened. The mark with that state is removed.
        """
        with self._changed:
            self.production.retire(cursor)
            self._changed.notify_all()
            opened = cursor.stream is not None or not isinstance(error, Exception)
            if opened or self.plan.random or cursor.at == 0:
                return False
            self.production.marks.remove(cursor.at)
            return True

    def _close_retired(self) -> None:
        """Closes cursors without the lock: that may wait for a user's function."""
        with self._changed:
            retired = self.production.take_retired(include_idle=self._closed)
        for cursor in retired:
            if cursor.stream is not None:
                cursor.stream.close()

    def close(self) -> None:
        """Closes the stream; threads that wait in `get_block` raise UnavailableError."""
        with self._changed:
            self._closed = True
            self._pool.forget(self)
            self._changed.notify_all()
        self._close_retired()
