"""Child processes, each in a session of its own; leaving the `with` block ends all of it.

Ctrl-C therefore reaches only the launcher, which unwinds its blocks: no process is left behind.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

POLITE = (signal.SIGTERM, signal.SIGHUP)


@contextmanager
def child(command: Sequence[str], **options: Any) -> Iterator[subprocess.Popen[bytes]]:
    """Runs `command` and hands out its process; its whole group is gone when the block ends."""
    process = subprocess.Popen(command, start_new_session=True, **options)
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with suppress(BrokenPipeError):
                    pipe.close()


def unwind_on_signals() -> None:
    """Lets a polite request to end unwind the `with` blocks, as Ctrl-C does; nohup stays nohup."""
    for number in POLITE:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, lambda received, _: sys.exit(128 + received))
