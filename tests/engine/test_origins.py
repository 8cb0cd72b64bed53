"""Errors name the row of the source that an element was made of, and its value."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock import Dataset
from penstock.data import Options
from penstock.element.values import brief
from penstock.engine.origins import describe_origin
from penstock.errors import InvalidArgumentError

ROWS = Dataset.from_tensor_slices(np.arange(20))

PLANS = {
    "rows": ROWS,
    "shuffle": ROWS.shuffle(20, seed=1),
    "shuffle, small buffer": ROWS.shuffle(4, seed=1),
    "repeat": ROWS.shuffle(20, seed=1).repeat(3),
    "repeat, then shuffle": ROWS.repeat(2).shuffle(40, seed=2),
    "shard": ROWS.shuffle(20, seed=1).shard(3, 2),
    "skip and take": ROWS.skip(4).take(9),
    "concatenate": ROWS.skip(15).concatenate(ROWS.take(3)),
    "map": ROWS.shuffle(20, seed=4).map(lambda x: x).prefetch(2),
    "enumerate": ROWS.shuffle(20, seed=4).enumerate().map(lambda number, x: x),
}


@pytest.mark.parametrize("name", PLANS)
def test_every_element_is_traced_to_its_row(name: str) -> None:
    """Each row holds its own number, so the elements say where they come from."""
    plan = PLANS[name]
    found = [describe_origin(plan.__plan__, at, (0,)) for at in range(len(plan))]
    assert found == [f"row {value} of from_tensor_slices" for value in plan]


def test_a_batch_names_some_of_its_rows() -> None:
    found = describe_origin(ROWS.batch(8).__plan__, 1, (0,))
    assert found == ", ".join([*(f"row {i} of from_tensor_slices" for i in (8, 9, 10)), "5 more"])


def test_zipped_datasets_name_a_row_of_each() -> None:
    found = describe_origin(Dataset.zip((ROWS, ROWS.skip(5))).__plan__, 2, (0,))
    assert found == "row 2 of from_tensor_slices and row 7 of from_tensor_slices"


@pytest.mark.parametrize("dataset", [Dataset.range(5), ROWS.filter(lambda x: x > 3)])
def test_nothing_is_said_where_nothing_is_known(dataset: Dataset) -> None:
    assert describe_origin(dataset.__plan__, 1, (0,)) == ""


def test_a_row_of_a_file_is_named_with_the_file(tmp_path: Path) -> None:
    for number, rows in enumerate((range(10), range(10, 30))):
        pq.write_table(pa.table({"x": list(rows)}), tmp_path / f"{number}.parquet")
    dataset = Dataset.from_parquet(str(tmp_path / "*.parquet"))
    found = [describe_origin(dataset.__plan__, at, (0,)) for at in (9, 10, 29)]
    one, two = (tmp_path / f"{number}.parquet" for number in range(2))
    assert found == [f"row 9 of {one}", f"row 0 of {two}", f"row 19 of {two}"]


def refuse_17(x: Any) -> Any:
    if x == 17:
        raise ValueError("this one")
    return x


@pytest.mark.parametrize("calls", [None, 3])
@pytest.mark.parametrize("executor", ["threads", "processes"])
def test_a_failing_function_leads_to_the_row(calls: int | None, executor: Any) -> None:
    mapped = ROWS.shuffle(20, seed=7).map(refuse_17, num_parallel_calls=calls)
    at = [int(x) for x in ROWS.shuffle(20, seed=7)].index(17)
    words = rf"failed for element {at} \(17\): ValueError: this one; the element comes from row 17"
    with pytest.raises(InvalidArgumentError, match=words):
        list(mapped.with_options(Options(executor=executor)))


def test_an_iteration_that_was_resumed_names_the_same_row() -> None:
    mapped = ROWS.shuffle(20, seed=7).map(refuse_17)
    at = [int(x) for x in ROWS.shuffle(20, seed=7)].index(17)
    first, again = iter(mapped), iter(mapped)
    for _ in range(at // 2):
        next(first)
    again.load_state_dict(first.state_dict())
    with pytest.raises(InvalidArgumentError, match=rf"element {at} \(17\).*comes from row 17 of"):
        list(again)


@pytest.mark.parametrize(
    ("element", "text"),
    [
        (np.int64(3), "3"),
        (b"imgs/cat/007.jpg", "b'imgs/cat/007.jpg'"),
        (b"x" * 1000, "1000 bytes"),
        ((np.float32(0.5), np.zeros((2, 3))), "(0.5, float64[2, 3])"),
        (np.array([1, 2]), "[1, 2]"),
        (np.array([b"a"] * 9, object), "string[9]"),
        ({"a": np.arange(3), "b": b""}, "{'a': [0, 1, 2], 'b': b''}"),
    ],
)
def test_elements_are_shown_briefly(element: Any, text: str) -> None:
    assert brief(element) == text


def test_a_long_structure_is_cut() -> None:
    assert len(brief(tuple(np.arange(100)))) == 100
