"""Call processes follow the folder, the environment and the modules of the program."""

import importlib
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from penstock.data import Dataset, Options
from penstock.engine.processes import surroundings
from penstock.engine.processes.surroundings import Change, find_change, find_search_path, observe
from tests.programs import ROOT, run_program


def call(function: Any) -> Any:
    """What a function returns in a call process."""
    dataset = Dataset.range(1).map(lambda x: function(), num_parallel_calls=2)
    dataset = dataset.with_options(Options(executor="processes"))
    [made] = dataset
    assert "calls run in processes" in dataset.explain()
    return made


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # Its time stamp has whole seconds.
    path = tmp_path / "module_of_a_test.py"
    path.write_text("def answer(): return 1\n")
    yield path
    sys.modules.pop(path.stem, None)


def test_calls_see_the_folder_of_the_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        assert call(os.getcwd) == os.fsencode(tmp_path / name)


def test_calls_see_the_environment_of_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    def read() -> str:
        return os.environ.get("PENSTOCK_OF_A_TEST", "missing")

    assert call(read) == b"missing"
    for value in ("1", "2"):
        monkeypatch.setenv("PENSTOCK_OF_A_TEST", value)
        assert call(read) == value.encode()
    monkeypatch.delenv("PENSTOCK_OF_A_TEST")
    assert call(read) == b"missing"


def test_calls_find_modules_where_the_program_finds_them_now(module: Path) -> None:
    answers = importlib.import_module(module.stem)
    assert call(answers.answer) == 1


def test_calls_use_a_module_as_the_program_loaded_it_last(module: Path) -> None:
    """Each text has another length: Python compares files by whole seconds and the size."""
    answers = importlib.import_module(module.stem)
    assert call(answers.answer) == 1
    assert call(lambda: answers.answer()) == 1
    module.write_text("def answer(): return 22\n")
    importlib.reload(answers)
    assert call(answers.answer) == 22
    assert call(lambda: answers.answer()) == 22
    module.write_text("def answer(): return 333\n")
    del sys.modules[module.stem]
    answers = importlib.import_module(module.stem)
    assert call(answers.answer) == 333


def test_calls_use_a_module_that_was_changed_in_place(module: Path) -> None:
    answers = importlib.import_module(module.stem)
    assert call(answers.answer) == 1
    module.write_text("def answer():  # as %autoreload does it\n    return 2\n")
    assert call(answers.answer) == 1, "edited, and not loaded again"
    assert answers.answer() == 1
    names: dict[str, Any] = {}
    exec(module.read_text(), names)
    answers.answer.__code__ = names["answer"].__code__
    assert call(answers.answer) == 2


def test_a_method_that_was_changed_in_place_is_a_change(module: Path) -> None:
    module.write_text("class Answer:\n    def get(self): return 1\n")
    answers = importlib.import_module(module.stem)
    before = observe()
    module.write_text("class Answer:\n    def get(self): return 22\n")
    names: dict[str, Any] = {}
    exec(module.read_text(), names)
    answers.Answer.get.__code__ = names["Answer"].get.__code__
    _, change = find_change(before, observe())
    assert change is not None
    assert change.reloaded == (module.stem,)


def test_nothing_is_sent_if_nothing_changes(module: Path) -> None:
    before = observe()
    assert find_change(before, observe())[1] is None
    answers = importlib.import_module(module.stem)
    after, change = find_change(before, observe())
    assert change is None, "a process loads it when it needs it"
    answers.counter = 1
    after, change = find_change(after, observe())
    assert change is None, "the file is the same"
    module.write_text("def answer(): return 5  # edited, and not loaded again\n")
    assert find_change(after, observe())[1] is None


def test_a_deleted_folder_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert observe().folder == ""
    surroundings.follow(Change("", {}, list(sys.path), ()))
    assert call(lambda: 7) == 7


def test_a_relative_entry_means_the_first_folder_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(surroundings, "_FIRST_FOLDER", "/first")
    monkeypatch.setattr(sys, "path", ["", "/absolute", "code"])
    assert find_search_path() == ["", "/first/", "/absolute", "code", "/first/code"]
    monkeypatch.setattr(surroundings, "_FIRST_FOLDER", "")
    assert find_search_path() == ["", "/absolute", "code"]


PROGRAM = """
import os
import penstock
from nearby import answer

os.chdir("/")
calls = penstock.Dataset.range(1).map(answer, num_parallel_calls=2)
calls = calls.with_options(penstock.data.Options(executor="processes"))
service = penstock.data.experimental.service
served = penstock.Dataset.range(1).map(answer)
served = served.apply(service.distribute("distributed_epoch", "local://1"))
print(*calls, *served, "calls run in processes" in calls.explain())
"""


def test_a_program_may_leave_the_folder_of_its_modules(tmp_path: Path) -> None:
    (tmp_path / "nearby.py").write_text("def answer(x): return 5\n")
    # An empty entry of PYTHONPATH would name the first folder.
    done = run_program(["-c", PROGRAM], tmp_path, PYTHONPATH=str(ROOT / "src"))
    assert done.stdout == "5 5 True\n"


SPAWNING = """
import concurrent.futures
import multiprocessing

import penstock


class Scale:
    def __call__(self, x):
        return x * 2


def read(url):
    dataset = penstock.Dataset.range(3).map(Scale(), num_parallel_calls=2)
    if url:
        distribute = penstock.data.experimental.service.distribute
        return [int(x) for x in dataset.apply(distribute("distributed_epoch", url))]
    dataset = dataset.with_options(penstock.data.Options(executor="processes"))
    return [int(x) for x in dataset], "calls run in processes" in dataset.explain()


if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=context) as spawned:
        print(*spawned.map(read, ["", "local://1"]))
"""


def test_a_spawned_process_sends_what_the_main_program_defines(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(SPAWNING)
    done = run_program(["program.py"], tmp_path)
    assert done.stdout == "([0, 2, 4], True) [0, 2, 4]\n", done.stderr
