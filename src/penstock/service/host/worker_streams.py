"""The streams that a worker runs on the engine, each for all tasks that read it.

Users' functions run outside of every lock: a task gets elements that are there, however long the
function that another task waits for takes. A stream must be the same on every worker and every
time, so no stream sees what another one has cached.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from typing import Any
from weakref import WeakValueDictionary

import msgspec

from penstock.element.chunk import Chunk
from penstock.engine.context import Context, Environment
from penstock.engine.contract import State, Stream, copy_state
from penstock.engine.inlets import Demand
from penstock.engine.lower import open_plan
from penstock.engine.meters import Meters
from penstock.engine.trail import Trail, place_of
from penstock.errors import UnavailableError
from penstock.plan.bounds import bound_plan
from penstock.plan.nodes import Cache, Node, Shard, Store, options_of
from penstock.plan.optimize import prepare
from penstock.plan.splits import piece
from penstock.service.host.failures import Fault, fault_of
from penstock.service.host.runtime import Runtime
from penstock.service.logic.production import (
    TAIL,
    Block,
    Cursor,
    End,
    Known,
    Make,
    Pace,
    Production,
    Serve,
    Stock,
    Wait,
    Want,
)
from penstock.service.protocol import timing
from penstock.service.protocol.fetches import Mark
from penstock.service.protocol.messages import Work

MOST_STATE = 16 << 10
"""Bytes of a state that travels; larger ones stay where they are."""

KEPT = 256 << 20
"""Bytes that a worker keeps for those who read the same elements."""

_TAILS = 64 << 20
"""Bytes that a worker keeps of all other streams together, for those who ask again."""

_CHUNK = 4 << 20
"""Bytes that are made in one go, about."""


_MARK_FRAMES = 64
"""A worker also saves the state of a stream after so many chunks."""

_MARK_SHARE = 20
"""Marks take at most this part of the time."""


@dataclass(frozen=True)
class Recipe:
    """The plan of one stream, ready to be opened. `random`: anywhere."""

    plan: Node
    context: Context

    @property
    def random(self) -> bool:
        return self.plan.blocked is None

    @property
    def longest(self) -> int | None:
        """How many elements there are, where anybody could begin behind the last of them."""
        return self.plan.cardinality if self.random and self.plan.cardinality >= 0 else None

    def open(self, state: State, stop: int | None = None, trail: Trail | None = None) -> Stream:
        """The stream from a state on (for random access a position, and up to `stop`).

        `trail` is told what the stream finds out.
        """
        plan = self.plan if stop is None else bound_plan(self.plan, stop)
        return open_plan(plan, state, replace(self.context, trail=trail))


def recipe_of(plan: Node, work: Work, environment: Environment) -> Recipe:
    """How to make the stream that `work` describes of a plan.

    With random access, the elements of one consumer are a plan of their own.
    """
    part = private(_piece(plan, work))
    ready = prepare(part)
    if ready.blocked is None and work.consumers > 1:
        ready = prepare(Shard(part, work.consumers, work.consumer))
    # Every copy of the whole is shuffled in an order of its own.
    copy = (work.stream,) if work.form == "whole" and work.stream > 0 else ()
    epoch, options = (*work.epoch, *copy), options_of(plan)
    # Nobody reads the meters of a worker, and every fetch of a random-access plan has new nodes.
    context = Context(environment, epoch, work.key, options, Meters(recording=False))
    return Recipe(ready, replace(context, numbered=work.form == "turns"))


def _piece(plan: Node, work: Work) -> Node:
    how = (work.stream, work.streams, work.policy, work.begin, work.inputs)
    return piece(plan, work.form, *how)


def private(node: Node) -> Node:
    """The plan with memory caches of its own."""
    if node.sealed:
        return node
    node = node.with_inputs(tuple(map(private, node.inputs)))
    return replace(node, store=Store()) if isinstance(node, Cache) else node


def encode_state(ordinal: int, state: State) -> bytes | None:
    """A state before element `ordinal`, as bytes; None if it holds elements, or is large."""
    if not _is_plain(state):
        return None
    encoded = msgspec.msgpack.encode([ordinal, state])
    return encoded if len(encoded) <= MOST_STATE else None


def decode_state(encoded: bytes) -> tuple[int, State]:
    """What `encode_state` was given."""
    ordinal, state = msgspec.msgpack.decode(encoded)
    return ordinal, state


def _is_plain(state: Any) -> bool:
    """Whether a state is made of numbers and texts alone. A tuple would come back as a list."""
    kind = type(state)
    if kind is dict:
        return all(type(name) is str and _is_plain(part) for name, part in state.items())
    if kind is list:
        return len(state) <= MOST_STATE and all(map(_is_plain, state))
    if kind is int:
        return bool(-(1 << 63) <= state < 1 << 64)
    return state is None or kind in (bool, float, str, bytes)


Quit = Callable[[], bool]


@dataclass(frozen=True, slots=True)
class Item:
    """What a cursor gave in one go, and the state before it, if one was saved."""

    content: Chunk | Fault
    mark: bytes | None
    seconds: float
    place: int | None = None
    """Of a fault, if it has one: see `trail`."""


class Depot:
    """What all lines of a worker share: one lock, and the bytes that they keep."""

    def __init__(self, address: str, kept: int, runtime: Runtime) -> None:
        self.address = address
        self.runtime = runtime
        self.lock = runtime.lock()
        self.lines: dict[Hashable, Line] = {}
        self.demands: WeakValueDictionary[str, Demand] = WeakValueDictionary()
        """How much is made in one go, by job: its streams are alike, and some of them short."""
        self._stocks = {True: Stock(kept), False: Stock(_TAILS)}

    @property
    def nbytes(self) -> int:
        return sum(stock.nbytes for stock in self._stocks.values())

    def allowance(self) -> int:
        """Bytes that a production with consumers may be ahead of the slowest one."""
        paced = sum(line.production.pace is not None for line in self.lines.values())
        return TAIL + self._stocks[True].limit // max(1, paced)

    def keep(self, line: Line, block: Block) -> None:
        """A block is on the shelf; others go for it, where it must be so."""
        stock = self._stocks[line.production.kept]
        if line.production.pace is None:
            stock.add(line.name, block.start, block.nbytes)
        self.trim(line)
        for name, start in stock.excess():
            self.lines[name].production.shelf.drop(start)
            stock.remove(name, start)

    def used(self, line: Line, block: Block) -> None:
        self._stocks[line.production.kept].touch(line.name, block.start)

    def trim(self, line: Line) -> None:
        """Lets go what nobody waits for."""
        for start in line.production.spare():
            line.production.shelf.drop(start)
            self._stocks[line.production.kept].remove(line.name, start)

    def forget(self, line: Line) -> None:
        """A line that is closed: nothing of it is kept."""
        if self.lines.get(line.name) is line:
            del self.lines[line.name]
            self._stocks[line.production.kept].clear(line.name)


class Line:
    """One stream of a worker, shared by all tasks that read it."""

    def __init__(self, depot: Depot, name: Hashable, recipe: Recipe, work: Work) -> None:
        self.name = name
        self.job = work.job
        self.recipe = recipe
        self.demand = depot.demands.setdefault(work.job, Demand(nbytes=_CHUNK))
        self.readers = 0
        self.idle_since = 0.0
        self.elements = 0
        self.seconds = 0.0
        strided = work.consumers > 1
        pace = Pace(work.consumers) if strided and not recipe.random else None
        # With random access, each consumer has a stream of its own.
        kept = work.kept and not (strided and recipe.random)
        self.production = Production(recipe.random, kept, pace, recipe.longest)
        self.trail = Trail()
        """What its cursors have found out, all of them the same."""
        self._depot = depot
        self._timer = depot.runtime.timer
        self._changed = depot.runtime.condition(depot.lock)
        self._closed = False

    @property
    def alone(self) -> bool:
        """Whether every reader makes its own elements: they are nobody else's."""
        return self.recipe.random and not self.production.kept

    @property
    def over(self) -> bool:
        """Whether it has come to its end, and keeps nothing for others."""
        production = self.production
        return production.length is not None and not production.kept and production.pace is None

    def did(self, elements: int, seconds: float) -> None:
        """Takes notice of work."""
        with self._changed:
            self.elements += elements
            self.seconds += seconds

    def learn(self, mark: Mark | None) -> None:
        """A mark that a client had of another worker."""
        if mark is None or self.recipe.random:
            return
        try:
            ordinal, state = decode_state(mark.state)
        except (msgspec.MsgspecError, ValueError, TypeError):
            return  # Without it, the stream begins at its start.
        with self._changed:
            self.production.marks.add(Known(ordinal, state))

    def block(self, want: Want, quit: Quit) -> Block | None:
        """The block with the element that is wanted; None at the end, or if nobody wants it."""
        while not quit():
            with self._changed:
                match self._step(want):
                    case Serve(block):
                        self._depot.used(self, block)
                        return block
                    case End():
                        return None
                    case Wait():
                        self._changed.wait(timing.STREAM_POLL)
                        continue
                    case Make(cursor, most):
                        pass
            made = self._make(cursor, most)
            if made is not None and made.start <= want.at < made.stop:
                return made
        return None

    def _step(self, want: Want) -> Serve | Make | Wait | End:
        if self._closed:
            raise UnavailableError("distribute: this worker stops; ask another one")
        self._depot.trim(self)
        allowance = 0 if self.production.pace is None else self._depot.allowance()
        return self.production.step(want, self._depot.runtime.now(), allowance)

    def _make(self, cursor: Cursor, most: int) -> Block | None:
        """Goes on with a cursor; what it gives is kept, as far as it is to be."""
        made = None
        try:
            item = self._pulled(cursor, most)
        except StopIteration:
            with self._changed:
                self.trail.part(cursor.trail.began, cursor.trail.ended)
                self.trail.count, self.trail.inputs = cursor.trail.count, cursor.trail.inputs
                self.production.ended(cursor)
                self._changed.notify_all()
        except BaseException as error:
            if not self._replaced(cursor, error):
                raise
        else:
            made = self._keep(cursor, item)
        finally:
            self._close_retired()
        return made

    def _pulled(self, cursor: Cursor, most: int) -> Item:
        if cursor.stream is None:
            cursor.trail = Trail()
            cursor.stream = self.recipe.open(cursor.state, cursor.stop, cursor.trail)
            cursor.state = None
        mark = None if self.recipe.random else self._mark(cursor)
        started, place = self._timer(), None
        content: Chunk | Fault
        try:
            content = cursor.stream.pull(min(most, self.demand.limit))
        except StopIteration:
            raise
        except Exception as error:
            content = fault_of(error, self._depot.address)
            place = place_of(error)
        seconds = self._timer() - started
        if isinstance(content, Chunk):
            self.demand.record(content, seconds)
        cursor.unmarked += seconds
        cursor.frames += 1
        return Item(content, mark, seconds, place)

    def _mark(self, cursor: Cursor) -> bytes | None:
        """Saves the state of a cursor now and then; gives it as bytes if it can travel."""
        due = cursor.unmarked >= timing.MARK or cursor.frames >= _MARK_FRAMES
        if not due or cursor.unmarked < _MARK_SHARE * cursor.cost:
            return None
        started = self._timer()
        state = copy_state(cursor.stream.save())
        encoded = encode_state(cursor.at, state)
        cursor.cost = self._timer() - started
        cursor.unmarked, cursor.frames = 0.0, 0
        with self._changed:
            self.production.marks.add(Known(cursor.at, state, encoded is not None))
        return encoded

    def _keep(self, cursor: Cursor, item: Item) -> Block:
        content = item.content
        count = len(content) if isinstance(content, Chunk) else 1
        with self._changed:
            self.trail.part(cursor.trail.began, None)
            made, kept = self.production.made(cursor, count, content.nbytes, item)
            self.did(count, item.seconds)
            if kept is not None and not self._closed:
                self._depot.keep(self, kept)
            self._changed.notify_all()
        return made

    def _replaced(self, cursor: Cursor, error: BaseException) -> bool:
        """Whether a cursor that could not be opened may be replaced by one from further back."""
        with self._changed:
            self.production.broke(cursor)
            self._changed.notify_all()
            opened = cursor.stream is not None or not isinstance(error, Exception)
            if opened or self.recipe.random or cursor.at == 0:
                return False
            self.production.marks.remove(cursor.at)
            return True

    def _close_retired(self) -> None:
        with self._changed:
            retired = self.production.let_go(everything=self._closed)
        for cursor in retired:
            if cursor.stream is not None:
                cursor.stream.close()

    def close(self) -> None:
        """Ends it; who waits is told."""
        with self._changed:
            self._closed = True
            self._depot.forget(self)
            self._changed.notify_all()
        self._close_retired()
