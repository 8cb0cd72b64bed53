"""The main program of a call process: calls users' functions on the elements that it is sent.

It does one task after the other, and ends when the program closes its channel. Its own prints are
flushed after each task, because the kernel may kill it at any time.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import pickle
import socket
import sys
import time
from typing import Any

from penstock.element import nest
from penstock.element.chunk import Chunk, unusable_element
from penstock.engine.processes import call_messages, fork_server
from penstock.engine.processes.batch_memory import write_rows
from penstock.engine.processes.call_messages import (
    Call,
    CallFailure,
    CallResults,
    Define,
    DropCells,
    Elements,
    Forget,
    Ready,
    ShareCell,
    Trees,
    Unloadable,
    pack_chunk,
    pack_error,
    unpack_chunk,
)
from penstock.engine.processes.packets import Packets
from penstock.engine.processes.surroundings import Change, follow
from penstock.engine.results import stack_results
from penstock.engine.user_calls import CONTAINED, Calls, FailedCall
from penstock.errors import InvalidArgumentError, OpError


def main(requests: int, parent: int) -> None:
    """Makes this process the fork server of call processes, for the program `parent`."""
    fork_server.serve(socket.socket(fileno=requests), parent, run)


def run(channel: socket.socket) -> None:
    """Runs a call process until its channel ends."""
    process = _CallProcess(Packets(channel))
    with contextlib.suppress(OSError):  # The program has ended.
        process.serve()


class _CallProcess:
    def __init__(self, packets: Packets) -> None:
        self._packets = packets
        self._files: dict[int, int] = {}
        self._calls: dict[int, Calls] = {}
        self._cells: dict[int, mmap.mmap] = {}
        self._given, self._sent = Trees(), Trees()

    def serve(self) -> None:
        self._packets.send(Ready())
        while (received := self._packets.receive()) is not None:
            note, body, descriptor = received
            match note:
                case Change():
                    follow(note)
                    if note.reloaded:  # Functions are loaded again, with modules they refer to.
                        self._calls.clear()
                case Define(number):
                    self._files[number] = descriptor
                case Forget(number):
                    self._forget(number)
                case ShareCell(cell, room):
                    self._map_cell(cell, room, descriptor)
                case DropCells(cells):
                    for cell in cells:
                        self._cells.pop(cell, None)
                case Call():
                    self._answer(note, body)
            del received, note, body

    def _map_cell(self, cell: int, room: int, descriptor: int) -> None:
        """Maps a cell, if that is possible; else results that belong there are sent."""
        if descriptor < 0:  # The functions have too many open files to receive one.
            return
        try:
            self._cells[cell] = mmap.mmap(descriptor, room)
        except OSError:
            pass
        finally:
            os.close(descriptor)

    def _forget(self, number: int) -> None:
        self._calls.pop(number, None)
        if number in self._files:
            os.close(self._files.pop(number))

    def _answer(self, call: Call, body: memoryview) -> None:
        given = call.elements
        chunk = None if given is None else unpack_chunk(given, body, self._given)
        del body
        try:
            calls = self._load(call.number)
        except Exception as error:
            self._packets.send(Unloadable(f"{type(error).__name__}: {error}"))
            return
        if chunk is None:
            self._packets.send(CallResults(0.0, None, b"", []))
        else:
            self._make(call, calls, chunk)
        if sys.stdout is not None:
            with contextlib.suppress(OSError, ValueError):  # The reader of the pipe has gone.
                sys.stdout.flush()

    def _load(self, number: int) -> Calls:
        if number not in self._calls:
            self._calls[number] = Calls(*call_messages.read_function(self._files[number]))
        return self._calls[number]

    def _make(self, call: Call, calls: Calls, chunk: Chunk) -> None:
        CONTAINED.set(call.contained)
        started, cpu = time.perf_counter(), time.process_time()
        try:
            made = calls.all(chunk, call.ordinal)
        except BaseException as error:
            self._packets.send(CallFailure(pack_error(error)))
        else:
            # On a busy machine a call takes long and does little.
            seconds = max(time.process_time() - cpu, (time.perf_counter() - started) / 4)
            del chunk
            self._send_made(call, calls, made, seconds)

    def _send_made(self, call: Call, calls: Calls, made: list[Any], seconds: float) -> None:
        good, failures = _split(made)
        chunk = stack_results(good) if good else None
        if chunk is not None and not failures and self._write(call, chunk):
            written = Elements(self._sent.pack(chunk.tree), chunk.size, [], [])
            self._packets.send(CallResults(seconds, written, b"", [], are_written=True))
            return
        elements, parts = self._pack(chunk)
        pickled = b""
        if elements is None and good:
            pickled, failures = _pickle(made, calls, call.ordinal)
        errors = [(index, pack_error(failed.error)) for index, failed in failures]
        self._packets.send(CallResults(seconds, elements, pickled, errors), parts)

    def _write(self, call: Call, made: Chunk) -> bool:
        """Writes results to their place in a batch; returns False if they have none."""
        rows = call.rows
        if rows is None or rows.cell not in self._cells:
            return False
        return write_rows(made, rows, memoryview(self._cells[rows.cell]))

    def _pack(self, chunk: Chunk | None) -> tuple[Elements | None, list[memoryview]]:
        """The results in columns; None if there are none, or columns cannot contain them."""
        if chunk is None:
            return None, []
        try:
            return pack_chunk(chunk, self._sent)
        except OpError:  # The program finds out again, and says which element it is.
            return None, []


Failures = list[tuple[int, FailedCall]]


def _split(made: list[Any]) -> tuple[list[Any], Failures]:
    good = [item for item in made if type(item) is not FailedCall]
    if len(good) == len(made):
        return good, []
    return good, [(i, item) for i, item in enumerate(made) if type(item) is FailedCall]


def _pickle(made: list[Any], calls: Calls, ordinal: int) -> tuple[bytes, Failures]:
    """The results pickled; a result that cannot be pickled is a failure."""
    import cloudpickle

    for index, item in enumerate(made):
        if type(item) is not FailedCall:
            try:
                if any(isinstance(leaf, memoryview) for leaf in nest.flatten(item)[0]):
                    raise TypeError("cloudpickle would send the bytes of a memoryview")
                pickle.loads(cloudpickle.dumps(item))
            except Exception as error:
                failed = _unusable(calls, item, ordinal + index, error)
                made[index] = FailedCall(failed)
    good, failures = _split(made)
    return cloudpickle.dumps(good), failures


def _unusable(calls: Calls, value: Any, ordinal: int, error: Exception) -> OpError:
    """The error that threads raise for such a value; if they raise none, an error that says why."""
    try:
        Chunk.of([value], calls.where, ordinal)
    except OpError as known:
        return known
    reason = InvalidArgumentError(f"it cannot be sent from a process ({error}); use threads")
    return unusable_element(calls.where, value, ordinal, reason)
