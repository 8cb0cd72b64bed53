"""The code of the reference page on the data service, as printed there, with penstock as `tf`.

Below each program the page prints its elements as a list; these tests expect that list.
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
from tests.integration.clusters import until

SNIPPETS = Path(__file__).parent / "snippets"
PORT = 5000
"""The port that the page uses."""


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
        config = service.WorkerConfig(dispatcher_address=dispatcher.target.removeprefix("grpc://"))
        readers = start_processes(dispatcher.target)
        # A reader that begins after the other has read everything would be refused.
        until(lambda: all_read(dispatcher.target))
        with service.WorkerServer(config):
            printed = [lists_in(reader.communicate()[0]) for reader in readers]
    assert [reader.returncode for reader in readers] == [0, 0]
    iterations = [sorted(first + second) for first, second in zip(*printed, strict=True)]
    assert iterations == [list(range(5))] * 3


def dispatcher_of_the_page() -> Any:
    """A dispatcher on the page's port, or on a free one if that is in use."""
    service = tf.data.experimental.service
    try:
        return service.DispatchServer(service.DispatcherConfig(port=PORT))
    except AlreadyExistsError:
        return service.DispatchServer()


def all_read(target: str) -> bool:
    """Whether both processes have begun to read the job."""
    jobs = tf.data.experimental.service.status(target)["jobs"]
    return [job["clients"] for job in jobs] == [2]


def start_processes(target: str) -> list[subprocess.Popen[str]]:
    """Two processes that run the program; they wait for a worker."""
    source = (SNIPPETS / "service_job_name.txt").read_text()
    program = "import penstock as tf\n" + source.replace(f"grpc://localhost:{PORT}", target)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    return [
        subprocess.Popen(
            [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, env=environment
        )
        for _ in range(2)
    ]


def lists_in(text: str) -> list[list[int]]:
    return [[int(one) for one in eval(line, {"np": np})] for line in text.splitlines()]
