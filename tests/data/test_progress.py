"""Progress bars have the right total and position, in every library that draws them."""

from __future__ import annotations

import subprocess
import sys
from operator import length_hint
from types import ModuleType
from typing import Any

import pytest

import penstock
from penstock import Dataset
from penstock.data import Options
from penstock.errors import InvalidArgumentError


class FakeBar:
    """Replaces `tqdm.tqdm`."""

    made: dict[str, Any] = {}  # noqa: RUF012

    def __init__(self, **options: Any) -> None:
        type(self).made = {**options, "n": options["initial"]}

    def update(self) -> None:
        self.made["n"] += 1

    def __enter__(self) -> FakeBar:
        return self

    def __exit__(self, *_: object) -> None:
        self.made["closed"] = True


@pytest.fixture
def tqdm(monkeypatch: pytest.MonkeyPatch) -> type[FakeBar]:
    module: Any = ModuleType("tqdm")
    module.tqdm = FakeBar
    monkeypatch.setitem(sys.modules, "tqdm", module)
    return FakeBar


def halfway(dataset: Any, count: int) -> Any:
    iterator = iter(dataset)
    for _ in range(count):
        next(iterator)
    other = iter(dataset)
    other.load_state_dict(iterator.state_dict())
    return other


def strategy() -> Any:
    return penstock.distribute.MirroredStrategy(["CPU:0", "CPU:1"])


RANGE = Dataset.range(12).batch(2)


@pytest.mark.parametrize(
    ("data", "initial", "total", "left"),
    [
        (lambda: RANGE, 0, 6, 6),
        (lambda: RANGE.as_torch(), 0, 6, 6),
        (lambda: RANGE.as_numpy_iterator(), 0, 6, 6),
        (lambda: RANGE.filter(lambda x: True), 0, None, 6),
        (lambda: RANGE.repeat().take(9).repeat(), 0, None, 9),
        (lambda: [1, 2, 3], 0, 3, 3),
        (lambda: iter({1: 2}.keys()), 0, 1, 1),
        (lambda: (x for x in "ab"), 0, None, 2),
        (lambda: halfway(RANGE, 4), 4, 6, 2),
        (lambda: halfway(RANGE.filter(lambda x: True), 4), 4, None, 2),
        (lambda: strategy().experimental_distribute_dataset(RANGE), 0, 6, 6),
        (lambda: halfway(strategy().experimental_distribute_dataset(RANGE), 5), 5, 6, 1),
    ],
)
def test_totals_and_positions(
    tqdm: type[FakeBar], data: Any, initial: int, total: int | None, left: int
) -> None:
    shown = penstock.progress(data(), "train", display="tqdm")
    seen = [element for element, _ in zip(shown, range(left), strict=False)]
    assert len(seen) == left
    assert (tqdm.made["initial"], tqdm.made["total"]) == (initial, total)
    assert tqdm.made["n"] >= initial + left - 1
    assert (tqdm.made["desc"], tqdm.made["unit"]) == ("train", " batch")


def test_a_loop_that_ends_early_closes_the_bar(tqdm: type[FakeBar]) -> None:
    for _ in (shown := penstock.progress(RANGE, display="tqdm")):
        break
    shown.close()  # type: ignore[attr-defined]
    assert tqdm.made["closed"]


def test_rich_draws_where_tqdm_is_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "tqdm", None)
    assert len(list(penstock.progress(halfway(RANGE, 2), "[red]train"))) == 4
    assert "[red]train" in (written := capsys.readouterr().err)
    assert "6/6" in written


def test_text_where_neither_is_there(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("tqdm", "rich"):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setattr("penstock.data.progress._EVERY", 0.0)
    assert len(list(penstock.progress(halfway(RANGE, 4), "train", unit="step"))) == 2
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition(",")[0] for line in lines] == [
        "train: 5 of 6 (step)",
        "train: 6 of 6 (step)",
        "train: 6 of 6 (step)",
    ]


def test_a_total_may_be_given(tqdm: type[FakeBar]) -> None:
    list(penstock.progress(RANGE.filter(lambda x: True), total=6, display="tqdm"))
    assert tqdm.made["total"] == 6


def test_the_arguments_are_checked_at_the_call() -> None:
    with pytest.raises(InvalidArgumentError, match="display must be one of 'auto', .* got 'x'"):
        penstock.progress(RANGE, display="x")
    with pytest.raises(InvalidArgumentError, match="total must be at least 0, got -1"):
        penstock.progress(RANGE, total=-1)


def test_length_hints_say_how_many_are_left() -> None:
    assert length_hint(iter(RANGE)) == 6
    assert length_hint(halfway(RANGE, 5)) == 1
    assert length_hint(iter(RANGE.repeat()), -1) == -1
    assert length_hint(iter(RANGE.with_options(Options())), -1) == 6


def test_no_bar_is_imported_before_it_is_needed() -> None:
    code = (
        "import sys, penstock; list(penstock.progress([1], display='none')); "
        "print({'tqdm', 'rich', 'IPython'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
