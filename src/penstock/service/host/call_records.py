"""The memory in which a plan process records its calls, and which its worker reads after a crash.

The worker makes it and passes its descriptor to the process. It holds the record of
`engine/call_watch.py`, and behind that the `Watch` that the worker wants.
"""

from __future__ import annotations

import mmap
import os
import signal

import msgspec

from penstock.engine.call_watch import RECORD_SIZE, CallWatch, RecordedCall, read_record
from penstock.engine.processes.fork_server import describe_exit
from penstock.service.logic.crashes import Crash, Search
from penstock.service.protocol.messages import Plain


class Watch(Plain, frozen=True):
    """How a process records its calls; see `CallWatch`."""

    seconds: float
    suspects: tuple[bytes, ...]
    refused: dict[bytes, str]


_decoder = msgspec.msgpack.Decoder(Watch)


class CallRecord:
    """The worker's side: the calls that a process has recorded."""

    def __init__(self, crash: Crash, search: Search) -> None:
        refused = {key: _explain(code) for key, code in search.refused.items()}
        watch = Watch(crash.watch, tuple(search.suspects), refused)
        wanted = msgspec.msgpack.encode(watch)
        self.descriptor = os.memfd_create("penstock calls", os.MFD_CLOEXEC)
        try:
            os.pwrite(self.descriptor, wanted, RECORD_SIZE)
            self._memory = mmap.mmap(self.descriptor, RECORD_SIZE + len(wanted))
        except BaseException:
            os.close(self.descriptor)
            raise

    def release_descriptor(self) -> None:
        """Closes the descriptor, once the process has it; the memory stays."""
        os.close(self.descriptor)

    def read(self) -> list[RecordedCall]:
        """Returns the calls that were running when the process ended, and frees the memory."""
        calls = read_record(self._memory)
        self._memory.close()
        return calls


def _explain(code: int) -> str:
    """The error of a call that is refused, from the exit code of the last process that made it."""
    hint = "; the kernel does that when memory runs out" if code == -signal.SIGKILL else ""
    return (
        "plan processes crashed in this call each time; the last one "
        f"{describe_exit(code)}{hint}; see what the worker printed"
    )


def open_watch(descriptor: int) -> CallWatch:
    """The process's side; closes the descriptor."""
    memory = mmap.mmap(descriptor, 0)
    os.close(descriptor)
    watch = _decoder.decode(memory[RECORD_SIZE:])
    return CallWatch(memory, watch.seconds, watch.suspects, watch.refused)
