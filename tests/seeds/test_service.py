"""The code of the reference page on the data service, as printed there, with penstock as `tf`.

The page prints what comes out below each program, as a list: that is what is expected here.
"""

import ast
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as tf
from penstock.errors import AlreadyExistsError

SNIPPETS = Path(__file__).parent / "snippets"
PORT = 5000
"""The one that the page uses."""


@pytest.mark.parametrize(
    "name", ["service_parallel_epochs", "service_distributed_epoch", "service_before_and_after"]
)
def test_a_program_of_the_page(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    source = (SNIPPETS / f"{name}.txt").read_text()
    names = {"tf": tf}
    exec(compile(source, name, "exec"), names)
    assert lists_in(capsys.readouterr().out) == [ast.literal_eval(source.splitlines()[-1])]


def test_two_processes_share_a_job(tmp_path: Path) -> None:
    """The page starts neither dispatcher nor worker, nor the two processes that read."""
    service = tf.data.experimental.service
    with dispatcher_of_the_page() as dispatcher:
        address = dispatcher.target.removeprefix("grpc://")
        with service.WorkerServer(service.WorkerConfig(dispatcher_address=address)):
            printed = processes_print(dispatcher.target)
    iterations = [sorted(first + second) for first, second in zip(*printed, strict=True)]
    assert iterations == [list(range(5))] * 3


def dispatcher_of_the_page() -> Any:
    """On the page's port, or on a free one if somebody has that."""
    service = tf.data.experimental.service
    try:
        return service.DispatchServer(service.DispatcherConfig(port=PORT))
    except AlreadyExistsError:
        return service.DispatchServer()


def processes_print(target: str) -> list[list[list[int]]]:
    """What each of two processes that run the program prints."""
    source = (SNIPPETS / "service_job_name.txt").read_text()
    program = "import penstock as tf\n" + source.replace(f"grpc://localhost:{PORT}", target)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    readers = [
        subprocess.Popen(
            [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, env=environment
        )
        for _ in range(2)
    ]
    texts = [reader.communicate()[0] for reader in readers]
    assert [reader.returncode for reader in readers] == [0, 0]
    return [lists_in(text) for text in texts]


def lists_in(text: str) -> list[list[int]]:
    return [[int(one) for one in eval(line, {"np": np})] for line in text.splitlines()]
