"""Saves that are interrupted and continue at their newest checkpoint."""

import os
import signal
import subprocess
import sys

import pytest

import penstock
from penstock.data import Dataset
from penstock.errors import NotFoundError, OpError


class Interrupts:
    """A function for `map` that counts its calls and fails on one element."""

    def __init__(self, element: int) -> None:
        self.calls: list[int] = []
        self._element = element

    def __call__(self, x: int) -> int:
        self.calls.append(int(x))
        if x == self._element:
            raise ValueError("interrupted")
        return x * 2


def make(interrupts: Interrupts) -> Dataset:
    function = lambda x: interrupts(x)  # noqa: E731 (both datasets have the same plan)
    return Dataset.range(20).map(function)


def save(tmp_path, interrupts, **options) -> None:
    arguments = {"directory": tmp_path / "checkpoints", "max_to_keep": 2}
    make(interrupts).save(tmp_path / "saved", checkpoint_args=arguments, **options)


@pytest.mark.parametrize("compression", [None, "GZIP"])
@pytest.mark.parametrize("shards", [None, 3])
def test_an_interrupted_save_continues(tmp_path, compression, shards) -> None:
    shard_func = None if shards is None else lambda x: x // 2 % shards
    options = {"compression": compression, "shard_func": shard_func}
    for stop in (5, 11):
        with pytest.raises(OpError, match="interrupted"):
            save(tmp_path, Interrupts(stop), **options)
    again = Interrupts(-1)
    save(tmp_path, again, **options)
    # The spec calls the function on the first elements; the save computes only what is missing.
    assert again.calls[-9:] == list(range(11, 20))
    assert 10 not in again.calls
    found = sorted(Dataset.load(str(tmp_path / "saved"), compression=compression))
    assert found == list(range(0, 40, 2))
    assert len([name for name in os.listdir(tmp_path / "saved") if name.isdigit()]) == 1


def test_a_complete_save_is_not_repeated(tmp_path) -> None:
    save(tmp_path, Interrupts(-1))
    again = Interrupts(-1)
    save(tmp_path, again)
    assert 19 not in again.calls


def test_checkpoints_are_written_at_intervals(tmp_path) -> None:
    counter = penstock.Variable(0)
    arguments = {
        "directory": tmp_path / "checkpoints",
        "max_to_keep": 10,
        "step_counter": counter,
        "checkpoint_interval": 5,
    }
    Dataset.range(40).save(tmp_path / "saved", checkpoint_args=arguments)
    assert int(counter.numpy()) == 40
    # As in TensorFlow, the first one is written after the first element.
    names = [name for name in os.listdir(tmp_path / "checkpoints") if name != "checkpoint"]
    assert len(names) == 8
    assert list(Dataset.load(str(tmp_path / "saved"))) == list(range(40))


KILLED = """
import os, signal, sys
from penstock.data import Dataset

def kill_at(x):
    if x == int(sys.argv[2]):
        os.kill(os.getpid(), signal.SIGKILL)
    return x

Dataset.range(20).map(kill_at).save(
    sys.argv[1] + "/saved",
    checkpoint_args={"directory": sys.argv[1] + "/checkpoints", "max_to_keep": 1},
)
"""


def test_a_killed_save_continues(tmp_path) -> None:
    def run(element: int) -> int:
        return subprocess.run(
            [sys.executable, "-c", KILLED, str(tmp_path), str(element)], check=False
        ).returncode

    assert run(9) == -signal.SIGKILL
    assert run(-1) == 0
    assert list(Dataset.load(str(tmp_path / "saved"))) == list(range(20))


def test_the_files_of_the_interrupted_save_must_be_there(tmp_path) -> None:
    with pytest.raises(OpError, match="interrupted"):
        save(tmp_path, Interrupts(5))
    Dataset.range(3).save(tmp_path / "other")
    (tmp_path / "saved").rename(tmp_path / "elsewhere")
    with pytest.raises(NotFoundError, match="delete its checkpoints to save all elements anew"):
        save(tmp_path, Interrupts(-1))
