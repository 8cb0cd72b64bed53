"""A process that has imported penstock, and forks a child for each program that it is given.

Most programs of the documentation take longer to import penstock, or torch, than to run. Each line
of standard input names a program, its folder, and the files for what it prints; the answer is the
exit status of the child, which nothing else has used.
"""

import importlib
import json
import os
import sys
import types
from pathlib import Path


def run_here(name: str, folder: str, printed: str, errors: str) -> None:
    """Makes this process run a program, as `python NAME` does in its folder."""
    os.chdir(folder)
    files = ((0, os.devnull, os.O_RDONLY), (1, printed, os.O_WRONLY), (2, errors, os.O_WRONLY))
    for number, path, how in files:
        file = os.open(path, how)
        os.dup2(file, number)
        os.close(file)
    sys.argv[:] = [name]
    sys.path[0] = folder
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    main.__file__ = name
    exec(compile(Path(name).read_text(encoding="utf-8"), name, "exec"), main.__dict__)


def serve(modules: list[str]) -> None:
    for module in modules:
        importlib.import_module(module)
    while line := sys.stdin.readline():
        if not (child := os.fork()):
            run_here(*json.loads(line))
            return
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


if __name__ == "__main__":
    serve(sys.argv[1:])
