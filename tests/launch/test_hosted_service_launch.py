"""`launch.local`: a service on this machine that several programs read from."""

import socket
import subprocess
import sys
import threading

import pytest

import penstock
from penstock.data import Dataset
from penstock.data.experimental import service
from penstock.errors import InvalidArgumentError, UnfitServerError

READER = """
import sys
from penstock.data import Dataset
from penstock.data.experimental import service

job = service.distribute("distributed_epoch", sys.argv[1], job_name="numbers")
iterator = iter(Dataset.range(6).map(lambda x: x * 2).apply(job))
first = [x for _, x in zip(range(1), iterator)]
print("joined", flush=True)
sys.stdin.readline()
print(*first, *iterator)
"""


def test_other_programs_read_from_it() -> None:
    with penstock.launch.local(2) as launched:
        programs = [
            subprocess.Popen(
                [sys.executable, "-W", "error", "-c", READER, launched.url],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for _ in range(2)
        ]
        # Both join before one of them ends: a finished job is refused.
        assert [program.stdout.readline() for program in programs if program.stdout] == (
            ["joined\n"] * 2
        )
        printed = [program.communicate("\n")[0] for program in programs]
        assert [program.returncode for program in programs] == [0, 0]
    assert sorted(int(word) for text in printed for word in text.split()) == [0, 2, 4, 6, 8, 10]


def test_it_ends_with_its_workers() -> None:
    launched = penstock.launch.local(1)
    numbers = Dataset.range(3).apply(service.distribute("distributed_epoch", launched.url))
    assert list(numbers) == [0, 1, 2]
    launched.close()
    launched.close()
    host, port = launched.url.removeprefix("grpc://").split(":")
    with pytest.raises(ConnectionRefusedError, match="refused"):
        socket.create_connection((host, int(port)))


def test_its_workers_are_there_when_it_is() -> None:
    with penstock.launch.local(3) as launched:
        assert len(service.status(launched.url)["workers"]) == 3


def test_it_follows_a_range_of_workers_and_keeps_a_journal(tmp_path) -> None:
    with penstock.launch.local("1..2", work_dir=str(tmp_path / "work")) as launched:
        numbers = Dataset.range(3).apply(service.distribute("distributed_epoch", launched.url))
        assert list(numbers) == [0, 1, 2]
    assert any((tmp_path / "work").iterdir())


@pytest.mark.parametrize(("workers", "follows"), [(2, False), ("2..2", False), ("1..2", True)])
def test_a_fixed_number_of_workers_follows_no_load(workers, follows) -> None:
    with penstock.launch.local(workers):
        names = [thread.name for thread in threading.enumerate()]
        assert any("penstock-scaling" in name for name in names) == follows


@pytest.mark.parametrize("workers", [0, -1, "2..1", "all", 1.5, True])
def test_wrong_numbers_of_workers_are_errors(workers) -> None:
    match = r"launch.local: workers must be a number of processes, like 4, or the fewest and the mo"
    with pytest.raises(InvalidArgumentError, match=f"{match}.*, got {workers!r}"):
        penstock.launch.local(workers)


def test_a_wrong_port_is_an_error() -> None:
    with pytest.raises(UnfitServerError, match="DispatcherConfig: port must be from 1 to 65535"):
        penstock.launch.local(1, port=70000)
