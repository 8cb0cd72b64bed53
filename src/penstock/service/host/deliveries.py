"""`Deliveries`: what one reader requests from workers, and what the workers send back.

The thread that pulls runs all of it; no other thread may call a method here. A worker that is lost
loses nothing else: the elements that it owes are requested from other workers.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from penstock.element.chunk import Chunk, describe
from penstock.element.nest import Tree, text_of
from penstock.engine.figures import WorkerFigures
from penstock.engine.processes.fork_server import describe_exit
from penstock.errors import (
    DataLossError,
    DeadlineExceededError,
    InvalidArgumentError,
    UnavailableError,
)
from penstock.plan.shape import Form
from penstock.service.host.agent import Agent
from penstock.service.host.data_client import Link, Links
from penstock.service.host.telemetry import ReaderTraces
from penstock.service.logic.feeds import Ask, Failure, Feed, FeedChunk
from penstock.service.logic.fetching import Blame, Fetcher
from penstock.service.logic.interleave_order import InputFeed, PlacedChunk
from penstock.service.protocol import timing
from penstock.service.protocol.data_messages import (
    Closing,
    Done,
    Failed,
    Impossible,
    Progress,
    Rows,
    from_failed,
    from_impossible,
)
from penstock.service.protocol.messages import Work, WorkerInfo

MOST_DAMAGED = 4
"""Chunks in a row that may arrive damaged before the connection is closed."""

_REMEDY = (
    "every element must have the same structure and dtypes; say what the function returns with "
    "map(..., output_signature=...)"
)

_LOG = logging.getLogger("penstock.service")


class Deliveries:
    """Sends the requests of `fetcher` over `links`, and hands it what arrives.

    `work` is what workers compute; a client that opens its iteration again replaces it.
    """

    def __init__(
        self,
        work: Work,
        fetcher: Fetcher,
        links: Links,
        agent: Agent,
        tree: Tree,
        worker_timeout: float,
        now: Callable[[], float],
        traces: ReaderTraces | None = None,
        figures: WorkerFigures | None = None,
    ) -> None:
        self.work = work
        self._fetcher = fetcher
        self._links = links
        self._agent = agent
        self.structures = Structures(tree)
        self._silence = timing.WORKER_SILENCE * worker_timeout
        self._now = now
        self._traces = traces
        self._figures = figures
        self._broken: dict[str, None] = {}
        """Workers whose connection broke, until a new one is open or cannot be opened."""
        self._losses: dict[str, int] = {}
        """The number of the last process that each worker has reported as lost."""
        self._is_short = False
        """Whether the memory budget leaves workers idle."""
        self._events = 0
        """How many damaged chunks and closed connections there were."""
        self._retry = 0.0
        """When workers that refused all work are asked again."""

    # Workers that come and go

    def set_workers(self, workers: Iterable[WorkerInfo]) -> None:
        """Closes the connections to workers that the dispatcher has removed."""
        for worker in self._links.want(workers):
            self._hear_out(self._links[worker])
        for worker in self._links.unwanted:
            self.lose(worker, broken=False)

    def update_workers(self) -> None:
        """Uses new connections, and reports workers that cannot be reached to the dispatcher."""
        for worker in self._links.take_connected():
            self._fetcher.join(worker)
            self._explain_loss(worker)
        for worker in [w for w in self._broken if not self._links.awaits(w)]:
            del self._broken[worker]
            if worker in self._links.unreachable:
                self._agent.report_lost(worker)

    def _explain_loss(self, worker: str) -> None:
        """Logs how a worker lost the process that computed elements for this reader before."""
        loss, before = self._links[worker].connection.process_loss, self._losses.get(worker)
        self._losses[worker] = loss.number
        if before is None or loss.number == before:
            return
        how, function = describe_exit(loss.code), loss.function.decode(errors="ignore")
        _LOG.warning(
            "distribute: a process of worker %s %s%s and %s",
            worker,
            how,
            f" in {function}" if function else "",
            f"is replaced in {loss.pause:.1f} s" if loss.pause else "was replaced",
        )
        if loss.is_traced:
            self._fetcher.blame.acquit(worker)
        else:
            self._fetcher.blame.explain(worker, how, function)

    def find_blame(self) -> Blame | None:
        """Returns the blame for elements with which processes crashed again and again."""
        blame = self._fetcher.blame
        # Workers that reconnect report how they lost their processes; the error includes it.
        if blame.is_certain and not any(map(self._links.awaits, blame.workers)):
            return blame
        return None

    def connect(self) -> None:
        """Connects to workers, and asks workers again that refused work a while ago."""
        if self._fetcher.leaving and self._now() >= self._retry:
            for worker in tuple(self._fetcher.leaving):
                if not self._links[worker].leaves:
                    self._fetcher.join(worker)
        self._links.dial()
        self._fetcher.expected = self._links.expected
        self._fetcher.returning = self._broken.keys()

    def lose(self, worker: str, broken: bool = True, reason: str = "") -> None:
        """Closes the connection to a worker and requests what it owes from other workers.

        `broken`: the connection broke, so the worker's process may have crashed.
        """
        self._links.drop(worker, reason)
        if broken:
            self._broken[worker] = None
        self._fetcher.lose(worker, broken)

    # Requests

    def request_elements(self) -> None:
        """Sends every request that the fetcher wants to make now."""
        for ask in self._fetcher.asks():
            self._send(ask)
        self._agent.report_memory(self._fetcher.held, self._fetcher.budget)
        if self._fetcher.is_short != self._is_short:
            self._is_short = not self._is_short
            if self._is_short:
                self._warn_of_budget()

    def _warn_of_budget(self) -> None:
        size, budget = self._fetcher.sizes.element_bytes, self._fetcher.budget
        _LOG.warning(
            "distribute: an element has about %.1f MB, and this reader may hold %.1f MB that it "
            "has not handed out; that is less than two elements for each of %d workers, so some of "
            "them wait; raise Options.service.reader_memory or make smaller batches",
            size / 1e6,
            budget / 1e6,
            len(self._fetcher.workers),
        )

    def _send(self, ask: Ask) -> None:
        work = self._work_of(ask.feed)
        try:
            link = self._links[ask.worker]
            if self._links.has_ended(link):
                self._hear_out(link)
                self.lose(ask.worker)
                return
            trace = "" if self._traces is None else self._traces.request(ask)
            successor = self._fetcher.find_successor(ask.worker, ask.feed, self.work.job)
            link.fetch(ask, work, trace=trace, successor=self._links.find_info(successor))
        except (KeyError, UnavailableError):
            self.lose(ask.worker)
        except DeadlineExceededError as error:
            self._replace(link, error.message)

    def _work_of(self, feed: Feed) -> Work:
        """What a worker computes for a feed."""
        work = msgspec.structs.replace(self.work, stream=feed.stream, begin=feed.begin)
        if not isinstance(feed, InputFeed):
            return work
        return msgspec.structs.replace(work, form=Form.TURNS, inputs=feed.inputs)

    # Replies

    def receive(self, timeout: float) -> None:
        """Waits for messages of workers and processes one of each; returns after `timeout`."""
        for link in self._links.ready(timeout):
            self._receive(link)
        for worker in self._links.unwanted:
            self.lose(worker, broken=False)  # It has finished its last element.
        self._replace_silent()

    def _receive(self, link: Link) -> bool:
        """Processes one message of a worker; returns False if its connection has ended."""
        try:
            link.in_use = True
            message, columns = link.connection.receive()
            link.in_use = False
        except UnavailableError:
            self.lose(link.worker)
        except DataLossError as error:
            self._give_up(link, error.message)
        except DeadlineExceededError as error:
            self._replace(link, error.message)
        else:
            self._process(link, message, columns)
            return True
        return False

    def _hear_out(self, link: Link) -> None:
        """Processes what a worker has sent that is gone or about to go.

        It may have said where its streams continue, while this reader did not read.
        """
        link.connection.set_receive_timeout(timing.HEAR_OUT)
        while self._links.is_readable(link) and self._receive(link):
            pass

    def _replace_silent(self) -> None:
        """Replaces workers that owe elements and do not even report progress."""
        for link in self._links.silent(self._silence):
            silence = link.silence(self._now())
            if silence > self._fetcher.patience(link.worker, self._silence):
                self._fetcher.note_silence(link.worker)
                self._replace(
                    link, f"it has said nothing for {silence:.0f} s, not even that it lives"
                )

    def _replace(self, link: Link, reason: str) -> None:
        """Requests from other workers what a worker owes that cannot be reached, but may live."""
        _LOG.warning(
            "distribute: %s: %s; other workers (%d are connected) are asked for what it owes, and "
            "this one is tried again",
            link.connection.peer,
            reason,
            len(self._links) - 1,
        )
        self.lose(link.worker, broken=False, reason=f"{link.connection.peer}: {reason}")

    def _process(self, link: Link, message: Any, columns: list[Any] | None) -> None:
        match message:
            case Rows() if columns is None:
                self._discard(link, message)
            case Rows():
                assert columns is not None
                self._links.note_chunk(link)
                self._note_figures(link, message)
                if self._figures is not None:
                    self._figures.note_arrival(link.worker, message.seconds, message.count)
                self._process_rows(message, columns)
            case Failed():
                self._note_figures(link, message)
                self._process_failure(message)
            case Progress(leaves=True):
                self._process_leaving(link, message)
            case Progress():
                link.where, link.element = message.where, message.element
                self._note_figures(link, message)
            case Done():
                link.owed.discard(message.request)
                self._process_end(link, message)
            case Impossible():
                link.owed.discard(message.request)
                error = from_impossible(message)
                self._fetcher.refuse(message.request, error, message.elsewhere)
                self._retry = self._now() + timing.WORKER_REFUSAL
            case Closing(reason):
                self._give_up(link, reason)

    def _process_leaving(self, link: Link, news: Progress) -> None:
        """A worker is about to stop: notes which streams it still makes, and which it has left."""
        if not link.leaves:
            link.leaves = True
            self._fetcher.leaving.add(link.worker)
            for task in news.moving:
                if (feed := link.feeds.get(task)) is not None:
                    self._fetcher.begin_move(feed, link.worker)
        for moved in news.moved:
            if (feed := link.feeds.get(moved.task)) is not None:
                self._fetcher.end_move(feed, moved.mark, link.worker)

    def _process_rows(self, rows: Rows, columns: list[Any]) -> None:
        if self._traces is not None:
            self._traces.note_arrival(rows.request, rows.start)
        at = rows.start
        places = columns.pop() if self._fetcher.takes_turns else None
        for chunk in self.structures.make_chunks(rows, columns):
            came: FeedChunk = chunk
            if places is not None:
                came = PlacedChunk(chunk, places[at - rows.start :][: len(chunk)])
            self._fetcher.arrive(rows.request, at, came, rows.seconds, rows.began)
            at += len(chunk)
        if rows.mark is not None:
            self._fetcher.mark(rows.request, rows.mark)

    def _process_failure(self, failed: Failed) -> None:
        if self._traces is not None:
            self._traces.note_arrival(failed.request, failed.ordinal, failed.kind)
        failure: FeedChunk = Failure(from_failed(failed), failed.counted)
        if self._fetcher.takes_turns:
            failure = PlacedChunk(failure, [failed.place])
        self._fetcher.arrive(failed.request, failed.ordinal, failure, began=failed.began)

    def _process_end(self, link: Link, done: Done) -> None:
        """Closes the worker's task if the worker will be asked for nothing more of a stream."""
        self._note_figures(link, done)
        feed = self._fetcher.done(done)
        if feed is not None and self.work.form == Form.SPLIT:
            link.close_task(self._work_of(feed))

    def _note_figures(self, link: Link, message: Rows | Failed | Done | Progress) -> None:
        if self._figures is not None and message.operators:
            self._figures.add_report(link.worker, message.operators)

    def _discard(self, link: Link, rows: Rows) -> None:
        """Ignores a damaged chunk. When its request ends, the fetcher requests the elements that
        did not arrive again, in smaller chunks. After several in a row the connection is closed.
        """
        link.damaged += 1
        self._fetcher.sizes.shrink()
        elements = f"elements {rows.start} to {rows.start + rows.count - 1} arrived damaged"
        if link.damaged >= MOST_DAMAGED:
            self._give_up(link, f"{elements}, as {link.damaged - 1} chunks before them")
        else:
            self._warn(link, f"{elements}; they are asked for again")

    def _give_up(self, link: Link, reason: str) -> None:
        """Closes a connection that damages data or that the worker closes; the worker may live."""
        self._warn(link, f"{reason}; what it owes is asked for again")
        self.lose(link.worker, broken=False, reason=f"{link.connection.peer}: {reason}")

    def _warn(self, link: Link, what: str) -> None:
        """Logs the first, second, fourth, eighth... of these events."""
        self._events += 1
        if self._events & (self._events - 1) == 0:
            times = f" ({self._events} such events so far)" if self._events > 1 else ""
            _LOG.warning("distribute: %s: %s%s", link.connection.peer, what, times)


class Structures:
    """Checks that all elements of one reader are alike: `tree`, and the dtypes of the first ones.

    Workers compare what functions return with what their client saw when it tried them
    (`Function.returns`). Where it had no element to try them on, the differences show here.
    """

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self._kind: Any = None
        self._first = ""

    def make_chunks(self, rows: Rows, columns: list[Any]) -> list[Chunk | Failure]:
        """Returns one chunk, or one failure for each element if the structure is wrong."""
        if rows.structure == text_of(self._tree):
            return [Chunk(self._tree, columns, rows.count)]
        error = InvalidArgumentError(
            f"distribute: an element has the structure {_show(rows.structure)}, but that of "
            f"element_spec is {_show(text_of(self._tree))}; {_REMEDY}"
        )
        return [Failure(error)] * rows.count

    def check(self, chunk: Chunk) -> None:
        """Raises InvalidArgumentError unless the dtypes are those of the first elements."""
        kind = chunk.kind
        if kind == self._kind:
            return
        words = describe(chunk.rows(0, 1).elements()[0])
        if self._kind is not None:
            raise InvalidArgumentError(
                f"distribute: elements are {self._first} at first, but {words} later; {_REMEDY}"
            )
        self._kind, self._first = kind, words


def _show(structure: str) -> str:
    """The text of a structure as a user would write it; each leaf is a star."""
    return structure.removeprefix("PyTreeSpec(").partition(", NoneIsLeaf")[0] or "*"
