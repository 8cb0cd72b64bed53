"""Call processes: the processes of this machine that call users' functions for this program.

All datasets of a program share them. They are forked from a fork server that is a new program, so
threads and GPUs of this program are not copied. They end with this program, also after kill -9,
and when nothing was called for a while.

A process has up to three tasks at once, so that it has work while this program is busy. A process
that crashes is replaced. The elements of its task are tried again one by one, and the element that
crashes alone is a failure.
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import itertools
import os
import pickle
import select
import socket
import subprocess
import sys
import threading
import time
from collections import OrderedDict, deque
from concurrent.futures import Future
from typing import Any, NamedTuple

from penstock.element.chunk import Chunk
from penstock.engine.processes import boot, call_messages, fork_server, surroundings
from penstock.engine.processes.batch_memory import BatchCells, TaskRows
from penstock.engine.processes.call_messages import (
    Call,
    CallFailure,
    CallResults,
    Define,
    DropCells,
    Forget,
    Ready,
    ShareCell,
    Trees,
    Unloadable,
    pack_chunk,
    unpack_chunk,
    unpack_error,
)
from penstock.engine.processes.chunk_memory import AVAILABLE as CAN_SHARE
from penstock.engine.processes.fork_server import ForkServer, describe_exit, start_program
from penstock.engine.processes.packets import Packets
from penstock.engine.processes.surroundings import Change
from penstock.engine.user_calls import CONTAINED, Calls, FailedCall
from penstock.errors import AbortedError, DataLossError, OpError

AVAILABLE = fork_server.AVAILABLE and CAN_SHARE
"""Whether this system has what call processes need."""

_IDLE_SECONDS = 60.0
_END_SECONDS = 2.0
_KEPT_FUNCTIONS = 16
DEPTH = 3
"""How many tasks a process has at once."""
_SLOW_SECONDS = 0.05
"""If the last task took longer, a process gets the next one when it has done it."""
_MOST_START_FAILURES = 3


class Answer(NamedTuple):
    """The results of a task: a chunk, or a list with a `FailedCall` for each failure.

    If `refusal` is not empty, the task was not done, for that reason.
    """

    made: Chunk | list[Any]
    seconds: float = 0.0
    refusal: str = ""


class SentFunction:
    """A function as processes receive it: a number and a file; raises if it cannot be pickled."""

    def __init__(self, calls: Calls) -> None:
        self.where = calls.where
        self.number = next(_NUMBERS)
        travels = (calls.operator, calls.function, calls.call, calls.signature)
        self.file = call_messages.write_function(travels)
        self.digest = _digest(self.file)

    @property
    def nbytes(self) -> int:
        return os.fstat(self.file).st_size

    def __del__(self) -> None:
        if hasattr(self, "file"):
            os.close(self.file)


_NUMBERS = itertools.count(1)


def _digest(file: int) -> bytes:
    with open(os.dup(file), "rb") as copy:
        copy.seek(0)
        return hashlib.file_digest(copy, "blake2b").digest()


class CallTask(Future[Answer]):
    """Elements, the function to call on them, and the answer; without elements, only loads it.

    `most` is the number of processes that may do tasks of the owner.
    """

    def __init__(
        self, function: SentFunction, chunk: Chunk | None, ordinal: int, owner: object, most: int
    ) -> None:
        super().__init__()
        self.function, self.chunk, self.ordinal = function, chunk, ordinal
        self.owner, self.most = owner, most
        self.rows: TaskRows | None = None
        """Where the results are written, if they are rows of a batch in shared memory."""
        self.contained = CONTAINED.get()
        self.number = next(_NUMBERS)

    def split(self) -> list[CallTask]:
        """One task for each element; this task is done when they are."""
        assert self.chunk is not None
        parts: list[CallTask] = []
        for index in range(len(self.chunk)):
            row, ordinal = self.chunk.rows(index, index + 1), self.ordinal + index
            parts.append(CallTask(self.function, row, ordinal, self.owner, self.most))
        for part in parts:
            part.contained = self.contained
            part.add_done_callback(lambda _: self._join(parts))
        return parts

    def _join(self, parts: list[CallTask]) -> None:
        if self.done() or not all(part.done() for part in parts):
            return
        if error := next(filter(None, (part.exception() for part in parts)), None):
            self.set_exception(error)
            return
        answers = [part.result() for part in parts]
        made = [item for answer in answers for item in _as_list(answer.made)]
        refusal = next((answer.refusal for answer in answers if answer.refusal), "")
        self.set_result(Answer(made, sum(answer.seconds for answer in answers), refusal))


def _as_list(made: Chunk | list[Any]) -> list[Any]:
    return made.elements() if isinstance(made, Chunk) else made


class _Process:
    """One process: the tasks that it was sent, and the functions that it knows."""

    def __init__(
        self, number: int, channel: socket.socket, cells: BatchCells, changes: list[Change]
    ) -> None:
        self.number = number
        self.packets = Packets(channel)
        self._changes, self._followed = changes, 0
        """The changes of the program's surroundings, and how many of them were sent."""
        self._cells = cells
        self._mapped: set[int] = set()
        """The cells that it maps."""
        self.tasks: deque[CallTask] = deque()
        self.known: set[int] = set()
        self.sent, self.given = Trees(), Trees()
        self.is_ready = self.is_lost = False
        self.seconds = 0.0

    @property
    def has_room(self) -> bool:
        return not self.is_lost and len(self.tasks) < (DEPTH if self.seconds < _SLOW_SECONDS else 1)

    def send(self, task: CallTask) -> None:
        """Sends a task; raises OSError if the process has ended, else what prevents it."""
        function, chunk = task.function, task.chunk
        elements, parts = (None, []) if chunk is None else pack_chunk(chunk, self.sent)
        for change in self._changes[self._followed :]:
            self.packets.send(change)
            self._followed += 1
        if function.number not in self.known:
            self.packets.send(Define(function.number), descriptor=function.file)
            self.known.add(function.number)
        rows = None
        if task.rows is not None:
            self._share_cell(task.rows)
            rows = task.rows.sent
        call = Call(function.number, task.ordinal, elements, task.contained, rows)
        self.packets.send(call, parts)
        self.tasks.append(task)

    def _share_cell(self, rows: TaskRows) -> None:
        cell = rows.batch.cell
        if cell.number in self._mapped:
            return
        dropped = tuple(number for number in self._mapped if not self._cells.knows(number))
        if dropped:
            self.packets.send(DropCells(dropped))
            self._mapped.difference_update(dropped)
        self.packets.send(ShareCell(cell.number, cell.room), descriptor=cell.descriptor)
        self._mapped.add(cell.number)

    def forget(self, function: SentFunction) -> None:
        if function.number in self.known:
            self.known.remove(function.number)
            with contextlib.suppress(OSError):  # It has ended.
                self.packets.send(Forget(function.number))


class CallProcesses:
    """The call processes of this program, until they are closed."""

    def __init__(self) -> None:
        self.process_id = os.getpid()
        self.refusal = ""
        """Why no process can be started; empty as long as that is not known."""
        self._lock = threading.RLock()
        """Guards all fields below, and those of every `_Process`."""
        self._slots: list[_Process | None] = []
        self._by_descriptor: dict[int, _Process] = {}
        self._waiting: deque[CallTask] = deque()
        self._functions: OrderedDict[bytes, SentFunction] = OrderedDict()
        self._surroundings = surroundings.observe()
        self._changes: list[Change] = []
        """How the surroundings have changed since the fork server was started."""
        self._used = time.monotonic()
        self._start_failures = 0
        self.closed = False
        self.batch_cells = BatchCells()
        requests, self._asked = ForkServer.socketpair()
        self._server = ForkServer(requests)
        self._program: subprocess.Popen[bytes] | None = None
        self._poll = select.epoll()
        self._poll.register(requests.fileno(), select.EPOLLIN)
        self._thread = threading.Thread(target=self._run, name="penstock-processes", daemon=True)
        self._thread.start()

    # For streams

    def keep(self, function: SentFunction) -> SentFunction:
        """The function, or an equal function that processes may know already.

        Before the first call, a process follows what has changed in the program until now.
        """
        with self._lock:
            self._note_change()
            kept = self._functions.setdefault(function.digest, function)
            self._functions.move_to_end(function.digest)
            if len(self._functions) > _KEPT_FUNCTIONS:
                _, oldest = self._functions.popitem(last=False)
                for process in self._by_descriptor.values():
                    process.forget(oldest)
            return kept

    def _note_change(self) -> None:
        now = surroundings.observe(self._surroundings)
        self._surroundings, change = surroundings.find_change(self._surroundings, now)
        if change is not None:
            self._changes.append(change)

    def submit(self, task: CallTask) -> bool:
        """Has a process do the task, as soon as one has room; returns False if it is closed."""
        with self._lock:
            if not self.closed:
                self._waiting.append(task)
                self._dispatch()
            return not self.closed

    def drop(self, owner: object) -> None:
        """Forgets the tasks of a stream that was closed."""
        with self._lock:
            self._waiting = deque(task for task in self._waiting if task.owner is not owner)

    def close(self) -> None:
        with self._lock:
            self.closed = True
            self._server.close()
        if (program := self._program) is not None:
            try:
                program.wait(_END_SECONDS)
            except subprocess.TimeoutExpired:
                program.kill()
                program.wait()
        self._thread.join(_END_SECONDS)

    # Tasks; the lock is held

    def _dispatch(self) -> None:
        self._used = time.monotonic()
        kept: deque[CallTask] = deque()
        while self._waiting and not self.refusal:
            task = self._waiting.popleft()
            process = self._choose(task.most)
            if process is None or not self._send(process, task):
                kept.append(task)
                if self._is_full:
                    break
        self._waiting = kept + self._waiting
        if self.refusal:
            self._refuse_all()

    @property
    def _is_full(self) -> bool:
        return all(process is not None and not process.has_room for process in self._slots)

    def _choose(self, most: int) -> _Process | None:
        """An idle process, a new one, or one with room for another task, of the first `most`."""
        while len(self._slots) < most:
            self._slots.append(None)
        live = [process for process in self._slots[:most] if process is not None]
        if idle := next((p for p in live if not p.tasks and not p.is_lost), None):
            return idle
        if len(live) < most:
            return self._start(self._slots.index(None))
        return min((p for p in live if p.has_room), key=lambda p: len(p.tasks), default=None)

    def _start(self, slot: int) -> _Process | None:
        number = next(_NUMBERS)
        try:
            channel = self._server.start(number)
        except OSError as error:
            self.refusal = f"processes cannot be started ({error})"
            return None
        process = _Process(number, channel, self.batch_cells, self._changes)
        self._slots[slot] = self._by_descriptor[process.packets.fileno()] = process
        self._poll.register(process.packets.fileno(), select.EPOLLIN)
        return process

    def _send(self, process: _Process, task: CallTask) -> bool:
        try:
            process.send(task)
        except OSError:
            process.is_lost = True  # The fork server reports its exit.
            return False
        except Exception as error:
            reason = f"an element cannot be sent to a process ({type(error).__name__}: {error})"
            task.set_result(Answer([], refusal=reason))
        return True

    def _refuse_all(self) -> None:
        while self._waiting:
            self._waiting.popleft().set_result(Answer([], refusal=self.refusal))

    # The thread that starts the fork server and receives answers

    def _run(self) -> None:
        # In this thread, which does not end before: the kernel kills the fork server with it.
        try:
            # There is a process for each core.
            self._program = start_program(boot.CALLS, self._asked, threads=1)
        except OSError as error:
            self.refusal = f"{sys.executable!r} cannot be started ({error})"
        self._asked.close()
        try:
            while not self.closed:
                events = self._poll.poll(_IDLE_SECONDS)
                with self._lock:
                    for descriptor, _ in events:
                        self._handle(descriptor)
                    self._dispatch_or_rest(bool(events))
        except (OSError, DataLossError) as error:  # Such as too many open files.
            self.refusal = self.refusal or f"results cannot be received ({error})"
        finally:
            self._end()

    def _end(self) -> None:
        """Ends the processes; streams that still wait for results compute them in threads."""
        with self._lock:
            self.closed = True
            self._server.close()
        if self._program is not None:
            self._program.wait()
        with self._lock:
            self._record_end()
            while self._server.wait_exit() is not None:  # Which closes its socket.
                pass
        self._poll.close()

    def _dispatch_or_rest(self, busy: bool) -> None:
        if busy or self._waiting:
            self._dispatch()
        elif not any(process.tasks for process in self._by_descriptor.values()):
            self.closed = True
            self._server.close()

    def _handle(self, descriptor: int) -> None:
        if (process := self._by_descriptor.get(descriptor)) is not None:
            self._receive(process)
        elif descriptor == self._server.fileno():
            ended = self._server.wait_exit()
            if ended is not None:
                self._record_exit(ended.number, ended.code)
            else:
                self.closed = True

    def _receive(self, process: _Process) -> bool:
        """Handles one message; returns False at the end."""
        try:
            received = process.packets.receive()
        except ConnectionResetError:
            return True  # Reported once; messages that came before it follow.
        if received is None:
            process.is_lost = True
            with contextlib.suppress(OSError):
                self._poll.unregister(process.packets.fileno())
            return False
        note, body, _ = received
        if isinstance(note, Ready):
            process.is_ready, self._start_failures = True, 0
            return True
        task = process.tasks.popleft()
        match note:
            case CallResults():
                process.seconds = note.seconds
                _set_results(task, note, body, process.given)
            case CallFailure(error):
                task.set_exception(unpack_error(error))
            case Unloadable(reason):
                task.set_result(Answer([], refusal=f"a process cannot load it ({reason})"))
        return True

    def _record_exit(self, number: int, code: int) -> None:
        process = next((p for p in self._by_descriptor.values() if p.number == number), None)
        if process is None:
            return
        tasks = self._remove(process)
        if not process.is_ready:
            self._start_failures += 1
            if self._start_failures >= _MOST_START_FAILURES:
                self.refusal = f"processes end when they start (one {describe_exit(code)})"
        elif tasks:
            tasks = [*_blame(tasks[0], code), *tasks[1:]]
        self._waiting.extendleft(reversed(tasks))

    def _remove(self, process: _Process) -> list[CallTask]:
        """Removes a process that has ended; returns the tasks that it has not done."""
        with contextlib.suppress(OSError, DataLossError):  # Such as too many open files.
            while self._receive(process):
                pass
        del self._by_descriptor[process.packets.fileno()]
        self._slots[self._slots.index(process)] = None
        process.packets.close()
        return list(process.tasks)

    def _record_end(self) -> None:
        """The fork server has ended, and all processes with it."""
        for process in list(self._by_descriptor.values()):
            self._waiting.extend(self._remove(process))
        self.refusal = self.refusal or "the program that starts processes has ended"
        self._refuse_all()


def _set_results(task: CallTask, note: CallResults, body: memoryview, trees: Trees) -> None:
    try:
        made = _unpack_results(task, note, body, trees)
    except Exception as error:  # Of a class of the user's, while it is unpickled.
        task.set_exception(error)
    else:
        task.set_result(Answer(made, note.seconds))


def _unpack_results(
    task: CallTask, note: CallResults, body: memoryview, trees: Trees
) -> Chunk | list[Any]:
    if note.elements is not None and note.are_written:
        assert task.rows is not None
        tree, count = trees.unpack(note.elements.skeleton), note.elements.size
        return task.rows.batch.rows(tree, task.rows.start, count)
    if note.elements is not None and not note.failures:
        return unpack_chunk(note.elements, body, trees)
    if note.elements is not None:
        made = unpack_chunk(note.elements, body, trees).elements()
    else:
        made = pickle.loads(note.pickled) if note.pickled else []
    for index, error in note.failures:
        made.insert(index, FailedCall(_as_failure(unpack_error(error))))
    return made


def _as_failure(error: BaseException) -> Exception:
    return error if isinstance(error, Exception) else OpError(str(error))


def _blame(task: CallTask, code: int) -> list[CallTask]:
    """What is left to do of the task in which a process crashed."""
    if task.chunk is None:
        task.set_result(Answer([], refusal=f"a process that loaded it {describe_exit(code)}"))
        return []
    if len(task.chunk) > 1:
        return task.split()
    error = AbortedError(
        f"{task.function.where} failed for element {task.ordinal}: its process "
        f"{describe_exit(code)} during the call"
    )
    task.set_result(Answer([FailedCall(error)]))
    return []


_current: CallProcesses | None = None
_current_lock = threading.Lock()
"""Held while `_current` is replaced, so that a program has one `CallProcesses` at a time."""


def call_processes() -> CallProcesses:
    """The call processes of this program; starts the program that forks them if there is none."""
    global _current
    with _current_lock:
        if _current is None or _current.closed or _current.process_id != os.getpid():
            _current = CallProcesses()
        return _current


@atexit.register
def _close() -> None:
    if _current is not None and _current.process_id == os.getpid():
        _current.close()
