"""`FetchServer`: answers the fetches of one client of a worker, from the first to the last.

The requests of one connection are answered in the order in which the client needs them: by their
turns and, of one task, by their elements. A request that was begun waits for one with a lower turn.
Between two chunks the server reads what has arrived, so that it notices a client that is gone.
While a function runs for long, another thread reports where it is. Without these reports, a client
could not distinguish a slow function from a network that carries nothing.

A worker that is to end finishes the element that it makes for each client. Another thread hands
back what was not begun meanwhile, so that clients ask other workers at once. Of a stream that is
computed in order, the worker makes further elements until another one can continue (`moves.py`).
"""

from __future__ import annotations

import contextlib
import logging
import select
import threading
import time
from collections import deque
from collections.abc import Iterator
from functools import partial

from penstock.engine.figures import Figures
from penstock.engine.trail import with_turns
from penstock.engine.user_calls import CONTAINED
from penstock.engine.whereabouts import Whereabouts, whereabouts
from penstock.errors import DataLossError, InvalidArgumentError, OpError, UnavailableError
from penstock.service.host.data_connection import Connection
from penstock.service.host.moves import ConnectTo, Move
from penstock.service.host.runtime import MACHINE, Runtime
from penstock.service.host.tasks import Fetched, FetchedChunk, Task, Tasks
from penstock.service.host.telemetry import (
    Attributes,
    contain_errors,
    find_parent,
    find_tracer,
    make_span,
)
from penstock.service.host.worker_streams import WorkerStream
from penstock.service.protocol import timing
from penstock.service.protocol.data_messages import (
    AddState,
    CloseTask,
    Done,
    Failed,
    Fetch,
    Impossible,
    Mark,
    MovedTask,
    OpenTask,
    Progress,
    ToClient,
    ToWorker,
    to_impossible,
)
from penstock.service.protocol.messages import Work, WorkerInfo

_LOG = logging.getLogger("penstock.service")

_LEAVES = "distribute: this worker is about to stop; ask another one"

_MOST_WAITING = 1024
"""Messages that are read before their turn; further ones stay in the socket."""


def serve(connection: Connection, tasks: Tasks, gate: FetchGate) -> None:
    """Answers a client until its connection ends."""
    CONTAINED.set(True)
    server = FetchServer(connection, tasks, gate)
    gate.reporter.add(server)
    try:
        server.run()
    except DataLossError as error:
        _warn(connection, error)
    except (OpError, OSError):
        pass  # The client is gone.
    finally:
        gate.reporter.remove(server)
        server.close()


class FetchServer:
    """The worker's side of one connection.

    The thread of the connection calls `run` and `close`. Other threads call `report`,
    `begin_moves`, `hand_back` and `give_up`.
    """

    def __init__(self, connection: Connection, tasks: Tasks, gate: FetchGate) -> None:
        self._connection = connection
        self._owner = tasks
        self._gate = gate
        self._tasks: dict[int, Task] = {}
        self._turn = tasks.pool.runtime.lock()
        """Guards the next five fields, and reading while a message is handled."""
        self._waiting: deque[ToWorker] = deque()
        """Messages that were read and not yet handled."""
        self._accepted: set[int] = set()
        """Requests that the gate counts."""
        self._is_leaving_known = False
        """Whether the client knows that this worker leaves."""
        self._successor: WorkerInfo | None = None
        """The worker that continues if this one leaves, as the client has named it last."""
        self._successors: dict[int, WorkerInfo] = {}
        """The same by task, as of its last request."""
        self._lost = False
        """Whether reading failed, so that the connection is of no more use."""
        self._thread = threading.get_ident()
        self._doing: int | None = None
        """The request that is answered; 0 during other messages, None between messages.

        `report` reads this and `_sent` without a lock: a stale value costs one report at most.
        """
        self._task: Task | None = None
        """The task of the latest request; `report` reads it, too."""
        self._sent = 0
        """How many messages were sent."""
        self._reported: tuple[int | None, int] = (None, 0)
        self._runtime = tasks.pool.runtime
        self._sending_since: float | None = None
        """When the thread of this connection began to send; `give_up` reads it without a lock."""
        self._hangup = tasks.pool.runtime.poll()
        self._hangup.register(connection, getattr(select, "POLLRDHUP", 0))

    def run(self) -> None:
        """Handles messages until the connection ends, which raises."""
        while True:
            while (message := self._next()) is None:
                self._receive()
            self._handle(message)
            self._doing = None

    def _next(self) -> ToWorker | None:
        with self._turn:
            if not self._waiting:
                return None
            # From here on, other threads may read: this one reads only with the lock.
            self._doing = 0
            return self._waiting.popleft()

    def _next_before(self, fetch: Fetch) -> ToWorker | None:
        """The next message, if the client needs a waiting request before `fetch`."""
        with self._turn:
            self._read_arrived()  # The client may have sent it while an element was made.
            waiting = next((m for m in self._waiting if isinstance(m, Fetch)), fetch)
            return self._waiting.popleft() if waiting.turn < fetch.turn else None

    def report(self) -> None:
        """Sends `Progress` if a request is answered and nothing was sent since the last call.

        Another thread calls this; it never blocks.
        """
        turn = (self._doing, self._sent)
        if turn[0] is not None and turn == self._reported:
            with contextlib.suppress(OSError, ValueError):  # The connection has ended.
                call = whereabouts(self._thread)
                self._connection.offer(partial(self._describe_progress, turn[0], call))
        self._reported = turn

    def _describe_progress(self, request: int, call: Whereabouts) -> Progress:
        task = self._task
        return Progress(
            request,
            call.function,
            element=None if task is None or task.is_partial else call.element,
            operators=() if task is None else task.take_figures(),
        )

    def begin_moves(self) -> None:
        """Begins to move streams to the worker that continues, once.

        Another thread calls this when the worker begins to leave.
        """
        with self._turn:
            if self._doing is not None:  # Else the thread of this connection reads.
                self._read_arrived()  # A request that is on its way may name the successor.
            self._move_streams()

    def _move_streams(self) -> None:
        to = self._owner.connect
        for number, task in list(self._tasks.items()):
            stream, successor = task.moving_stream, self._successors.get(number)
            if to is None or successor is None or stream is None or task.is_move_known:
                continue
            if stream.has_cursors:
                self._gate.move(stream, task.work, successor, to)

    def hand_back(self) -> None:
        """Refuses every request that was not begun, and says that this worker leaves.

        Another thread calls this while the worker leaves; it does not wait for the client. So the
        client asks other workers at once, however long the element takes that is being made.
        """
        with self._turn:
            doing = self._doing
            refused: list[Fetch] = []
            if doing is not None:  # Else the thread of this connection reads, and refuses itself.
                self._read_arrived()
                waiting = [message for message in self._waiting if isinstance(message, Fetch)]
                refused = [fetch for fetch in waiting if not self._can_answer(fetch)]
            with contextlib.suppress(OSError, ValueError):  # The connection has ended.
                # The client learns where a stream continues before this worker refuses the rest.
                is_move_known = self._offer_news()
                for fetch in refused if is_move_known else ():
                    refusal = partial(self._refuse, fetch.request)
                    if not self._connection.offer(refusal):
                        return
                    self._waiting.remove(fetch)
                    self._end_request(fetch.request)

    def is_behind(self, stream: WorkerStream, mark: Mark) -> bool:
        """Whether the client has not yet requested elements of a stream that are before a mark."""
        with self._turn:
            tasks = [task for task in self._tasks.values() if task.moving_stream is stream]
        return any(task.is_behind(mark) for task in tasks)

    def give_up(self, before: float) -> None:
        """Ends the connection if it has been sending since `before`: the client does not read.

        Another thread calls this while the worker leaves. The client asks other workers for what
        it did not receive.
        """
        since = self._sending_since
        if since is not None and since < before:
            self._connection.abort()

    @contextlib.contextmanager
    def _note_sending(self) -> Iterator[None]:
        self._sending_since = self._runtime.now()
        try:
            yield
        finally:
            self._sending_since = None

    def _offer_news(self) -> bool:
        """Offers the client the news that this worker leaves, and where other workers continue.

        Returns whether the client knows all of it. The caller holds the lock.
        """
        news = self._find_news()
        if news is None:
            return True
        if not self._connection.offer(lambda: news):
            return False
        self._note_known(news)
        return True

    def _send_news(self) -> None:
        """Sends the same news before this worker refuses a request.

        Only the thread of the connection calls this, because sending may block.
        """
        with self._turn:
            news = self._find_news()
            if news is not None:
                self._note_known(news)
        if news is not None:
            with self._note_sending():
                self._connection.send(news)

    def _find_news(self) -> Progress | None:
        tasks = list(self._tasks.items())
        moving = tuple(number for number, task in tasks if self._makes_more(task))
        moved = tuple(
            MovedTask(number, mark)
            for number, task in tasks
            if (mark := self._find_moved(task)) is not None
        )
        is_needed = moved or (not self._is_leaving_known and (moving or self._doing is not None))
        if not is_needed:
            return None
        return Progress(self._doing or 0, leaves=True, moving=moving, moved=moved)

    def _find_moved(self, task: Task) -> Mark | None:
        """Where another worker continues a task, if its client does not know that yet.

        With the last element of a request the client gets the mark, too.
        """
        if task.is_move_known or task is self._task or self._makes_more(task):
            return None
        move = self._gate.find_move(task)
        moved = None if move is None else move.mark
        return task.save_idle_mark() if moved is None else task.renumber(moved)

    def _note_known(self, news: Progress) -> None:
        self._is_leaving_known = True
        for moved in news.moved:
            if (task := self._tasks.get(moved.task)) is not None:
                task.is_move_known = True

    def _makes_more(self, task: Task) -> bool:
        """Whether elements of a task may be begun while this worker leaves."""
        move = self._gate.find_move(task)
        return move is not None and move.is_pending

    def _can_answer(self, fetch: Fetch) -> bool:
        """Whether a request can be answered, at least in part."""
        if not self._gate.draining:
            return True
        self._move_streams()  # The request may have been the first one to name the successor.
        task = self._tasks.get(fetch.task)
        return task is not None and (self._makes_more(task) or task.has_made(fetch.start))

    def _refuse(self, request: int) -> Impossible:
        return to_impossible(request, UnavailableError(_LEAVES), self._owner.address)

    def _receive(self) -> None:
        message, _ = self._connection.receive()
        match message:
            case Fetch(request, task):
                self._successor = message.successor or self._successor
                if self._successor is not None:
                    self._successors[task] = self._successor
                if request in self._accepted or self._gate.enter(self._can_answer(message)):
                    self._accepted.add(request)
                    self._insert(message)
                elif self._doing is None:
                    self._send_news()
                    self._connection.send(self._refuse(request))
                else:
                    self._insert(message)  # `hand_back` refuses it, without waiting for its turn.
            case OpenTask() | CloseTask() | AddState():
                self._waiting.append(message)
            case _:
                pass

    def _insert(self, fetch: Fetch) -> None:
        """Inserts a request before the requests that the client needs later.

        The client needs the elements in order, and may ask here for what another worker owed.
        """
        later = (index for index, other in enumerate(self._waiting) if _is_later(other, fetch))
        if (place := next(later, None)) is None:
            self._waiting.append(fetch)
            return
        self._waiting.insert(place, fetch)
        for index in range(place + 1, len(self._waiting)):
            message = self._waiting[index]
            if isinstance(message, OpenTask) and message.task == fetch.task:
                del self._waiting[index]
                self._waiting.insert(place, message)

    def _handle(self, message: ToWorker) -> None:
        match message:
            case OpenTask(number, work):
                self._close_task(number)
                self._tasks[number] = self._owner.open(work)
            case CloseTask(number):
                self._close_task(number, finished=True)
                self._successors.pop(number, None)
            case Fetch(request):
                self._doing = request
                try:
                    can_answer = self._can_answer(message)
                    answer = self._answer(message) if can_answer else self._refuse(request)
                    self._task = None  # From here on, `hand_back` says where it continues.
                    if self._gate.draining:
                        self._send_news()
                    with self._note_sending():
                        self._connection.send(answer)
                finally:
                    self._end_request(request)
            case AddState():
                self._connection.send(self._add_state(message))

    def _add_state(self, part: AddState) -> Done | Impossible:
        """Keeps a part of a state that another worker sends; that worker leaves."""
        if self._gate.draining:
            return self._refuse(part.request)
        try:
            task = self._tasks.get(part.task)
            if task is None:
                raise InvalidArgumentError(
                    f"distribute: a state of task {part.task}, which is not open"
                )
            task.add_state(part)
            return Done(part.request)
        except BaseException as error:
            return to_impossible(part.request, error, self._owner.address)

    def _end_request(self, request: int) -> None:
        with self._turn:
            if request in self._accepted:
                self._accepted.discard(request)
                self._gate.leave()

    def _answer(self, fetch: Fetch) -> ToClient:
        """Sends the elements of a fetch; returns the last message about it."""
        try:
            task = self._task = self._find_task(fetch)
            self._receive_arrived()
            at = fetch.start
            started = time.time_ns() if fetch.trace else 0
            parts = task.fetch(
                fetch.start,
                fetch.stop,
                mark=fetch.mark,
                horizon=self._find_end(fetch),
                is_cancelled=self._is_over,
            )
            if fetch.trace:
                parts = _trace_answer(fetch.trace, parts, started, self._owner.address)
            for part in parts:
                self._send(fetch, task, part)
                at += len(part.chunk) if isinstance(part, FetchedChunk) else 1
                while (message := self._next_before(fetch)) is not None:
                    self._handle(message)
                    self._doing, self._task = fetch.request, task
            length = None if self._is_client_gone() else task.length(fetch.stop)
            if self._gate.draining and at < (fetch.stop if length is None else length):
                return self._refuse(fetch.request)  # The client has a part, and moves the rest.
            lengths = None if length is None else task.trail.lengths
            return Done(
                request=fetch.request,
                length=length,
                began=task.trail.began,
                ended=task.trail.ended,
                lengths=lengths,
                used=None if length is None else task.used,
                operators=() if length is None else task.take_figures(),
            )
        except BaseException as error:
            # Users' functions raise anything. If the client is gone, sending the answer raises.
            return to_impossible(fetch.request, error, self._owner.address)

    def _find_task(self, fetch: Fetch) -> Task:
        task = self._tasks.get(fetch.task)
        if task is None or not 0 <= fetch.start <= fetch.stop:
            raise InvalidArgumentError(
                f"distribute: cannot fetch elements {fetch.start} to {fetch.stop} of task "
                f"{fetch.task}; open the task first, and ask for a range"
            )
        return task

    def _find_end(self, fetch: Fetch) -> int:
        """Returns where the waiting requests end that continue this one."""
        horizon = fetch.stop
        with self._turn:
            waiting = tuple(self._waiting)
        for message in waiting:
            if isinstance(message, Fetch) and message.task == fetch.task:
                if message.start != horizon:
                    break
                horizon = message.stop
        return horizon

    def _is_over(self) -> bool:
        """Whether no element may be begun for the request that is answered."""
        if self._is_client_gone():
            return True
        if not self._gate.draining:
            return False
        self._move_streams()  # The thread that begins moves may not have come to it yet.
        return self._task is None or not self._makes_more(self._task)

    def _is_client_gone(self) -> bool:
        self._receive_arrived()
        # The end of a connection is no message, so `_receive_arrived` does not notice it.
        return self._lost or bool(self._hangup.poll(0))

    def _receive_arrived(self) -> None:
        """Receives the messages that have arrived, without blocking."""
        with self._turn:
            self._read_arrived()

    def _read_arrived(self) -> None:
        try:
            while len(self._waiting) < _MOST_WAITING and self._connection.poll():
                self._receive()
        except (OpError, OSError) as error:
            # The next message to the client raises, too.
            self._lost = True
            if isinstance(error, DataLossError):
                _warn(self._connection, error)

    def _send(self, fetch: Fetch, task: Task, part: Fetched) -> None:
        self._sent += 1
        request, began = fetch.request, task.trail.began

        def figures(end: int) -> tuple[Figures, ...]:
            # A client may need nothing after its last elements, not even `Done`.
            is_last = end == fetch.stop or self._gate.draining
            return task.take_figures() if is_last else ()

        if isinstance(part, FetchedChunk):
            stop = part.start + len(part.chunk)
            # From there, another worker continues what this one leaves.
            left = self._leave_mark(fetch, task, part) if self._gate.draining else None
            with self._note_sending():
                size = self._connection.send_rows(
                    request,
                    part.start,
                    with_turns(part.chunk),
                    mark=left or part.mark,
                    seconds=part.seconds,
                    began=began,
                    operators=figures(stop),
                )
            self._owner.traffic.add(elements=len(part.chunk), nbytes=size)
        else:
            own = figures(part.ordinal + 1)
            failed = Failed(
                request=request,
                ordinal=part.ordinal,
                began=began,
                place=part.place,
                operators=own,
                **vars(part.fault),
            )
            with self._note_sending():
                self._connection.send(failed)
            self._owner.traffic.add(failures=1)

    def _leave_mark(self, fetch: Fetch, task: Task, part: FetchedChunk) -> Mark | None:
        """The mark behind the last element of a stream; None if further elements follow."""
        stop = part.start + len(part.chunk)
        self._receive_arrived()  # A request that is on its way may name the successor.
        self._move_streams()
        move = self._gate.find_move(task)
        if move is not None and move.allows_element(part.seconds):
            return None
        # A client that has named no successor does not know that a state can be elsewhere.
        moved = None if move is None or self._successor is None else move.mark
        saved = task.save_mark(stop, fetch.most_state) if moved is None else None
        mark = saved if moved is None else task.renumber(moved)
        task.is_move_known = mark is not None
        return mark

    def _close_task(self, number: int, finished: bool = False) -> None:
        task = self._tasks.pop(number, None)
        if task is not None:
            task.close(finished)

    def close(self) -> None:
        """Closes all tasks and ends all requests."""
        for number in list(self._tasks):
            self._close_task(number)
        for request in list(self._accepted):
            self._end_request(request)
        self._connection.close()


def _is_later(message: ToWorker, fetch: Fetch) -> bool:
    """Whether a waiting message is a request that the client needs after `fetch`."""
    if not isinstance(message, Fetch):
        return False
    follows = message.task == fetch.task and message.start > fetch.start
    return message.turn > fetch.turn or follows


def _warn(connection: Connection, error: DataLossError) -> None:
    _LOG.warning("worker: %s: %s; the connection ends", connection.peer, error.message)


# What all connections of a worker share: which fetches it accepts, and what moves. A worker that
# leaves closes the gate. From then on it accepts only fetches that it can answer, and it ends when
# the last fetch and the last move have ended.


class ProgressReporter:
    """Calls `report` of all fetch servers in a thread, which runs while there are any."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._changed = runtime.condition()
        """Guards the fields below."""
        self._servers: dict[FetchServer, None] = {}
        self._runs = False

    def add(self, server: FetchServer) -> None:
        with self._changed:
            self._servers[server] = None
            starts, self._runs = not self._runs, True
        if starts:
            self._runtime.start(self._run, "penstock-progress")

    def remove(self, server: FetchServer) -> None:
        with self._changed:
            self._servers.pop(server, None)
            self._changed.notify_all()

    @property
    def servers(self) -> tuple[FetchServer, ...]:
        with self._changed:
            return tuple(self._servers)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait(timing.PROGRESS)
                if not self._servers:
                    self._runs = False
                    return
                servers = tuple(self._servers)
            for server in servers:
                server.report()


class FetchGate:
    """Shared by all connections: counts accepted fetches, and accepts no more while draining."""

    def __init__(self, runtime: Runtime = MACHINE) -> None:
        self.reporter = ProgressReporter(runtime)
        self._runtime = runtime
        self._changed = runtime.condition()
        """Guards the fields below."""
        self._inside = 0
        """Fetches, moves, and what `close` has begun."""
        self.draining = False
        """Whether `close` was called. Read without the lock: it changes once."""
        self._moves: dict[WorkerStream, Move] = {}
        """By stream; a move is never removed, so `find_move` looks without the lock."""
        self._until = 0.0
        """When moves are given up."""

    def enter(self, can_answer: bool = False) -> bool:
        """Counts one more fetch; returns False if it is not accepted.

        While the worker leaves, only a fetch that it `can_answer` is accepted.
        """
        with self._changed:
            accepts = can_answer or not self.draining
            self._inside += accepts
            return accepts

    def leave(self) -> None:
        """Ends an accepted fetch."""
        with self._changed:
            self._inside -= 1
            self._changed.notify_all()

    def find_move(self, task: Task) -> Move | None:
        """The move of the stream of a task, if there is one."""
        stream = task.moving_stream
        return None if stream is None else self._moves.get(stream)

    def move(self, stream: WorkerStream, work: Work, successor: WorkerInfo, to: ConnectTo) -> None:
        """Begins to move the state of a stream to another worker, unless that has begun."""
        with self._changed:
            if stream in self._moves:
                return
            move = Move(
                stream,
                work,
                successor,
                connect=to,
                runtime=self._runtime,
                until=self._until,
            )
            self._moves[stream] = move
            self._inside += 1

        def run() -> None:
            try:
                move.run()
                for server in self.reporter.servers:
                    server.hand_back()  # Clients without a request learn of it, too.
                self._wait_for_last(stream, move)
            finally:
                self.leave()

        self._runtime.start(run, "penstock-move")

    def _wait_for_last(self, stream: WorkerStream, move: Move) -> None:
        """Waits until every consumer of a coordinated read has requested what was made for it.

        The successor would have to compute these elements again, from an earlier mark.
        """
        while move.mark is not None and self._runtime.now() < self._until:
            if not any(s.is_behind(stream, move.mark) for s in self.reporter.servers):
                return
            with self._changed:
                self._changed.wait(timing.HAND_BACK)

    def close(self, seconds: float | None = None) -> None:
        """Accepts no more fetches, and hands back accepted fetches that were not begun.

        `seconds`: the grace period of the worker.
        """
        with self._changed:
            starts, self.draining = not self.draining, True
            if starts:
                grace = timing.DRAIN if seconds is None else seconds
                self._until = self._runtime.now() + timing.MOVE * grace
                self._inside += 1
        if starts:
            self._runtime.start(self._hand_back, "penstock-hand-back")

    def _hand_back(self) -> None:
        """Hands back fetches until all have ended, because more of them may be on their way."""
        try:
            servers = self.reporter.servers
            for server in servers:
                server.begin_moves()
            for server in servers:
                server.hand_back()
        finally:
            self.leave()
        while not self.wait(timing.HAND_BACK):
            now = self._runtime.now()
            with self._changed:
                moves = tuple(self._moves.values())
            for move in moves:
                move.give_up(now)
            for server in self.reporter.servers:
                server.hand_back()
                if now > self._until:
                    server.give_up(now - timing.SWITCH)

    def wait(self, timeout: float | None) -> bool:
        """Blocks until every accepted fetch has ended; returns False after `timeout`."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._inside, timeout)


# What a worker adds to the trace of an element: spans of its making and of its sending


def _trace_answer(
    carried: str, parts: Iterator[Fetched], started: int, worker: str
) -> Iterator[Fetched]:
    """Yields `parts`, and makes the spans of the first one for the trace that a request carries.

    A part is made until it is yielded, and sent until the caller asks for the next one.
    """
    tracer = find_tracer()
    first = next(parts, None)
    if first is None:
        return
    made = time.time_ns()
    yield first
    sent = time.time_ns()
    if tracer is not None:
        with contain_errors():
            parent, attributes = find_parent(carried), _describe_part(first, worker)
            error = "" if isinstance(first, FetchedChunk) else first.fault.kind
            make_span(tracer, "penstock.make", parent, (started, made), attributes, error)
            make_span(tracer, "penstock.send", parent, (made, sent), attributes)
    yield from parts


def _describe_part(part: Fetched, worker: str) -> Attributes:
    if not isinstance(part, FetchedChunk):
        return {"penstock.worker": worker, "penstock.elements": 1}
    return {
        "penstock.worker": worker,
        "penstock.elements": len(part.chunk),
        "penstock.bytes": part.chunk.nbytes,
        "penstock.making_seconds": part.seconds,
    }
