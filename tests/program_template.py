"""A process that has imported modules, and forks a child for each program that it is given.

Many programs take longer to import penstock, or torch, than to run. Each line of standard input
describes one program: its words, as they would follow `python`, its folder, its variables, the
files for its input, output and errors, and a FIFO for its process id and its exit status.
"""

import importlib
import json
import os
import runpy
import sys
import types
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path


def run_here(words: list[str], folder: str, variables: Mapping[str, str]) -> None:
    """Makes this process run a program, as `python WORDS` does in its folder."""
    os.chdir(folder)
    os.environ.update(variables)
    if words[:2] == ["-W", "error"]:
        warnings.simplefilter("error")
        sys.warnoptions.append("error")
        del words[:2]
    match words:
        case ["-m", module, *_]:
            sys.argv[:] = words[1:]
            sys.path[0] = folder
            runpy.run_module(module, run_name="__main__", alter_sys=True)
            return
        case ["-c", text, *rest]:
            name, sys.argv[:], sys.path[0] = "<string>", ["-c", *rest], folder
        case [name, *_]:
            text, sys.argv[:] = Path(name).read_text(encoding="utf-8"), words
            sys.path[0] = str(Path(name).resolve().parent)
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    if name != "<string>":
        main.__file__ = os.path.abspath(name)
    exec(compile(text, name, "exec"), main.__dict__)


def open_files(files: Sequence[str]) -> None:
    """Makes files the standard input, output and errors of this process."""
    for number, (path, how) in enumerate(
        zip(files, (os.O_RDONLY, os.O_WRONLY, os.O_WRONLY), strict=True)
    ):
        file = os.open(path, how)
        os.dup2(file, number)
        os.close(file)
    sys.stdin = os.fdopen(0, closefd=False)  # The former one may have read further lines.


def watch(child: int, report: str) -> None:
    """Writes the id of a child and, when it has ended, its exit status."""
    with open(report, "w", encoding="utf-8") as file:
        print(child, file=file, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), file=file)


def serve(modules: list[str]) -> None:
    for module in modules:
        importlib.import_module(module)
    watchers: list[int] = []
    while line := sys.stdin.readline():
        watchers = [pid for pid in watchers if not os.waitpid(pid, os.WNOHANG)[0]]
        files, report, words, folder, variables = json.loads(line)
        if watcher := os.fork():
            watchers.append(watcher)
        elif child := os.fork():
            watch(child, report)
            os._exit(0)
        else:
            open_files(files)
            run_here(words, folder, variables)
            return


if __name__ == "__main__":
    serve(sys.argv[1:])
