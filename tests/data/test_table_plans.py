"""Columns of tables: their names, missing values, types, and errors."""

import datetime
import logging
import os
import sys
import traceback
from pathlib import Path
from typing import Any, NamedTuple

import datasets
import numpy as np
import pandas
import polars
import pyarrow as pa
import pyarrow.parquet
import pytest
import torch

import penstock
from penstock.data import Dataset
from penstock.element.spec import fits
from penstock.errors import (
    DataLossError,
    FailedPreconditionError,
    InvalidArgumentError,
    InvalidTypeError,
    UnavailableError,
    UnknownError,
)


def arrow(**columns: Any) -> Any:
    return pa.table(columns)


def test_columns_are_chosen_by_name() -> None:
    table = arrow(a=[1], b=["x"], c=[2.5])
    assert list(Dataset.from_arrow(table, columns=["c", "a"])[0]) == ["c", "a"]
    with pytest.raises(InvalidArgumentError, match="the table has no column 'd'; it has 'a', 'b'"):
        Dataset.from_arrow(table, columns=["d"])
    with pytest.raises(InvalidTypeError, match=r"a list of names, got 'a'.*; write columns=.'a'."):
        Dataset.from_arrow(table, columns="a")  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match="columns has a name twice"):
        Dataset.from_arrow(table, columns=["a", "a"])
    with pytest.raises(InvalidArgumentError, match=r"columns=\[\] chooses no columns to read"):
        Dataset.from_arrow(table, columns=[])
    with pytest.raises(InvalidArgumentError, match="the table has no columns to read"):
        Dataset.from_arrow(table.select([]))


def test_what_is_no_table_is_refused() -> None:
    with pytest.raises(InvalidTypeError, match="needs tables, record batches or paths, got Int64"):
        Dataset.from_arrow(pa.array([1]))
    with pytest.raises(InvalidArgumentError, match="table 2 has the columns 'x': string, but tab"):
        Dataset.from_arrow([arrow(x=[1]), arrow(x=[2]), arrow(x=["a"])])


@pytest.mark.parametrize("size", [0, 3, 8])
def test_a_file_that_is_cut_before_its_schema_is_refused(size: int, tmp_path: Path) -> None:
    path = tmp_path / "x.arrow"
    path.write_bytes(b"ARROW1\0\0"[:size])
    words = "is not an Arrow file: it " + ("begins with b'ARR'" if size else "is empty")
    with pytest.raises(DataLossError, match="x.arrow' is damaged" if size == 8 else words):
        Dataset.from_arrow(path)


def test_a_missing_value_names_column_file_and_row(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    pa.parquet.write_table(arrow(x=[0, 1, 2, 3, None, 5]), path, row_group_size=2)
    rows = iter(Dataset.from_parquet(path))
    assert [int(next(rows)["x"]) for _ in range(4)] == [0, 1, 2, 3]
    message = f"'{path}', row 4: column 'x' has no value .null.; .*fill={{'x': 0}}"
    with pytest.raises(InvalidArgumentError, match=message):
        next(rows)
    assert next(rows)["x"] == 5
    assert [int(row["x"]) for row in Dataset.from_parquet(path).ignore_errors()] == [0, 1, 2, 3, 5]


NULLS = {
    "number": (pa.array([1, None]), 7, 7),
    "string": (pa.array(["a", None]), "?", b"?"),
    "dictionary": (pa.array(["a", None]).dictionary_encode(), "?", b"?"),
    "bool": (pa.array([True, None]), False, False),
    "list": (pa.array([[1], None]), 7, []),
    "item": (pa.array([[1], [2, None]]), 7, [2, 7]),
    "fixed": (pa.array([[1, 2], [3, None]], pa.list_(pa.int64(), 2)), 7, [3, 7]),
    "missing fixed": (pa.array([[1, 2], None], pa.list_(pa.int64(), 2)), 7, [7, 7]),
    "struct": (pa.array([{"a": 1}, None]), 7, {"a": 7}),
    "timestamp": (pa.array([1, None], pa.timestamp("s")), 7, 7),
    "decimal": (pa.array([None, None], pa.decimal128(5, 2)), "1.50", b"1.50"),
}


@pytest.mark.parametrize("kind", NULLS)
def test_missing_values_are_filled_if_asked(kind: str) -> None:
    array, fill, expected = NULLS[kind]
    first = 0 if kind == "decimal" else 1
    with pytest.raises(InvalidArgumentError, match=f"the table, row {first}: column 'x' has no"):
        list(Dataset.from_arrow(arrow(x=array)))
    for given in (fill, {"x": fill}):
        found = Dataset.from_arrow(arrow(x=array), fill=given)[1]["x"]
        plain = {k: int(v) for k, v in found.items()} if isinstance(found, dict) else found
        assert (plain.tolist() if isinstance(plain, np.ndarray) else plain) == expected


TENSOR = pa.fixed_shape_tensor(pa.int64(), (2, 3), permutation=[1, 0])


def tensors(*rows: list[int] | None) -> Any:
    return pa.ExtensionArray.from_storage(TENSOR, pa.array(rows, TENSOR.storage_type))


LEAVES = [
    pa.int8(),
    pa.float16(),
    pa.bool_(),
    pa.string(),
    pa.binary(),
    pa.binary(3),
    pa.decimal128(3, 3),
    pa.date32(),
    pa.timestamp("ns", "UTC"),
    pa.duration("s"),
    pa.dictionary(pa.int8(), pa.string()),
]


@pytest.mark.parametrize(
    "kind",
    [
        *LEAVES,
        *(pa.list_(leaf) for leaf in LEAVES),
        *(pa.list_(leaf, 2) for leaf in LEAVES),
        *(pa.struct([("a", leaf)]) for leaf in LEAVES),
        pa.struct([("a", pa.int64()), ("b", pa.list_(pa.float32(), 2))]),
        pa.list_(pa.list_(pa.list_(pa.bool_(), 2)), 2),
        TENSOR,
    ],
    ids=str,
)
def test_the_advice_about_missing_values_can_be_followed(kind: Any) -> None:
    array = tensors(None) if kind is TENSOR else pa.array([None], kind)
    with pytest.raises(InvalidArgumentError, match="column 'x' has no value") as caught:
        list(Dataset.from_arrow(arrow(x=array)))
    advice = str(caught.value).partition("as in fill=")[2].partition(", or")[0]
    rows = Dataset.from_arrow(arrow(x=array), fill=eval(advice))
    assert fits(rows.element_spec, rows[0])


def test_no_value_is_advised_where_none_fits() -> None:
    kind = pa.struct([("a", pa.int64()), ("b", pa.string())])
    with pytest.raises(InvalidArgumentError, match=r".null.; leave the column out with columns="):
        list(Dataset.from_arrow(arrow(x=pa.array([None], kind))))


def test_missing_fixed_size_lists_of_a_part_of_a_table_are_filled() -> None:
    array = pa.array([None, [1, 2], [3, None], None], pa.list_(pa.int64(), 2))
    rows = Dataset.from_arrow(arrow(x=array).slice(1), fill=7)
    assert [row["x"].tolist() for row in rows] == [[1, 2], [3, 7], [7, 7]]


def test_a_tensor_with_a_permutation_has_its_logical_shape(tmp_path: Path) -> None:
    rows = Dataset.from_arrow(arrow(x=tensors([0, 1, 2, 3, 4, 5])))
    assert rows.element_spec["x"].shape == (3, 2)
    rows.save(str(tmp_path / "saved"))
    for found in (rows, Dataset.load(str(tmp_path / "saved"))):
        assert [row["x"].tolist() for row in found] == [[[0, 3], [1, 4], [2, 5]]]


def test_fill_must_fit_the_column() -> None:
    table = arrow(x=[1, None], s=["a", None])
    with pytest.raises(InvalidArgumentError, match="fill has 'a' for column 'x' of type int64"):
        Dataset.from_arrow(table, fill={"x": "a"})
    with pytest.raises(
        InvalidArgumentError, match="fill has 0 for column 's' of type string.*; give a"
    ):
        Dataset.from_arrow(table, fill={"s": 0})
    struct = arrow(place=[{"x": 1, "city": "a"}, {"x": 1, "city": None}])
    match = (
        "fill has {'x': 0} for column 'place' of type .*; one value fills all fields of a struct"
    )
    with pytest.raises(InvalidArgumentError, match=match):
        Dataset.from_arrow(struct, fill={"place": {"x": 0}})
    lists = arrow(x=pa.array([[1], None]))
    with pytest.raises(
        InvalidArgumentError, match="fill has .. for column 'x' .*its items, such as 0, and"
    ):
        Dataset.from_arrow(lists, fill={"x": []})
    with pytest.raises(InvalidArgumentError, match="fill has a value for 'y', but the columns"):
        Dataset.from_arrow(table, fill={"y": 0})
    with pytest.raises(InvalidArgumentError, match="fill=.'a'. fits no column; .* 'x': int64"):
        Dataset.from_arrow(table, columns=["x"], fill=["a"])
    # One fill value for all columns is used for the columns with a fitting type.
    with pytest.raises(InvalidArgumentError, match="row 1: column 's' has no"):
        list(Dataset.from_arrow(table, fill=0))


@pytest.mark.parametrize(
    ("kind", "fill", "reason"),
    [
        (pa.int64(), None, "it is a missing value"),
        (pa.string(), None, "it is not a string"),
        (pa.int64(), 1.9, "it would become 1"),
        (pa.int64(), np.True_, "it would become 1"),
        (pa.int8(), 300, "too large"),
        (pa.float64(), True, "it would become 1.0"),
        (pa.float32(), 1e300, "it would become inf"),
        (pa.timestamp("s"), 1.9, "it would become 1"),
        (pa.decimal128(5, 1), "1.25", "would cause data loss"),
        (pa.list_(pa.int64()), 1.9, "it would become 1"),
        (pa.struct([("a", pa.int64())]), 1.9, "it would become 1"),
        (pa.dictionary(pa.int8(), pa.int64()), 1.9, "it would become 1"),
    ],
)
def test_fill_must_be_kept_by_the_type_of_the_column(kind: Any, fill: Any, reason: str) -> None:
    table = arrow(x=pa.array([None], kind), y=[1])
    with pytest.raises(InvalidArgumentError, match=f"fill has .* for column 'x' .*{reason}"):
        Dataset.from_arrow(table, fill={"x": fill})


def test_fill_may_have_another_type_that_the_column_holds_exactly() -> None:
    table = arrow(i=pa.array([None], pa.int8()), f=pa.array([None], pa.float32()))
    row = Dataset.from_arrow(table, fill={"i": np.float64(2), "f": 3})[0]
    assert row == {"i": 2, "f": 3.0}
    assert (row["i"].dtype, row["f"].dtype) == (np.int8, np.float32)


@pytest.mark.parametrize(
    ("array", "reason"),
    [
        (pa.array([None]), "it has no values at all"),
        (pa.array([[{"a": 1}]]), "which elements cannot have; give its fields columns"),
        (pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int64())), "which elements cannot have"),
    ],
    ids=["null", "list of structs", "map"],
)
def test_types_that_elements_cannot_have(array: Any, reason: str) -> None:
    table = arrow(x=array, y=[1])
    with pytest.raises(InvalidArgumentError, match=f"column 'x' of the table .*{reason}"):
        Dataset.from_arrow(table)
    assert Dataset.from_arrow(table, columns=["y"])[0] == {"y": 1}


def test_two_columns_of_one_name_are_refused() -> None:
    table = pa.table([pa.array([1]), pa.array([2])], names=["x", "x"])
    with pytest.raises(InvalidArgumentError, match="'x'.*the table has two columns of this name"):
        Dataset.from_arrow(table)


def test_dates_are_numbers_of_their_unit() -> None:
    day = datetime.date(1970, 1, 3)
    noon = datetime.datetime(1970, 1, 1, 12, tzinfo=datetime.UTC)
    table = arrow(
        day=pa.array([day], pa.date32()),
        at=pa.array([noon], pa.timestamp("ms", tz="UTC")),
        time=pa.array([datetime.time(0, 1)], pa.time32("s")),
        span=pa.array([datetime.timedelta(seconds=2)], pa.duration("us")),
    )
    found = {name: value.item() for name, value in Dataset.from_arrow(table)[0].items()}
    assert found == {"day": 2, "at": 12 * 3600 * 1000, "time": 60, "span": 2_000_000}


def test_tensors_of_a_fixed_shape_are_arrays() -> None:
    values = np.arange(12, dtype=np.float32).reshape(2, 2, 3)
    table = arrow(x=pa.FixedShapeTensorArray.from_numpy_ndarray(values))
    dataset = Dataset.from_arrow(table)
    assert dataset.element_spec["x"].shape == (2, 3)
    assert np.array_equal(dataset[1]["x"], values[1])


def test_files_must_have_the_same_columns(tmp_path: Path) -> None:
    first, second = tmp_path / "a.parquet", tmp_path / "b.parquet"
    pa.parquet.write_table(arrow(x=[1], y=[1.5]), first)
    for columns, found in (
        (arrow(x=["1"], y=[1.5]), "'x' is int64 of shape .*, but '.*b.parquet' has string"),
        (arrow(x=[1]), "'y' is float64 of shape .*, but '.*b.parquet' has no such column"),
        (arrow(x=[1], y=[None]), "but '.*b.parquet' has one that cannot be read"),
    ):
        pa.parquet.write_table(columns, second)
        with pytest.raises(InvalidArgumentError, match=found):
            Dataset.from_parquet([first, second])
    assert [int(row["x"]) for row in Dataset.from_parquet([second, first], columns=["x"])] == [1, 1]


def test_nothing_but_footers_is_read_when_a_dataset_is_made(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    pa.parquet.write_table(arrow(x=range(1000)), path, compression=None, use_dictionary=False)
    content = bytearray(path.read_bytes())
    content[4:4000] = bytes(3996)
    path.write_bytes(content)
    assert len(Dataset.from_parquet(path)) == 1000


def test_a_shuffle_that_decodes_too_much_is_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.engine.table_access._CACHE_BYTES", 1)
    path = tmp_path / "x.parquet"
    pa.parquet.write_table(arrow(x=range(2000)), path, row_group_size=100)
    with caplog.at_level(logging.WARNING, "penstock"):
        assert len(list(Dataset.from_parquet(path))) == 2000
        assert caplog.messages == []
        assert len(list(Dataset.from_parquet(path).shuffle(2000, seed=1).batch(1))) == 2000
    assert len(caplog.messages) == 1
    assert "whole blocks were read for" in caplog.messages[0]


def test_pandas_keeps_nan_in_floats() -> None:
    frame = pandas.DataFrame({"x": [1.0, float("nan")], "s": ["a", None]})
    assert np.isnan(Dataset.from_pandas(frame, columns=["x"])[1]["x"])
    with pytest.raises(InvalidArgumentError, match="from_pandas: the table, row 1: column 's'"):
        list(Dataset.from_pandas(frame))


def test_frames_that_are_refused() -> None:
    with pytest.raises(InvalidTypeError, match="from_pandas: needs a DataFrame, got"):
        Dataset.from_pandas({"x": [1]})
    with pytest.raises(InvalidArgumentError, match="different names that are strings, got 'a'"):
        Dataset.from_pandas(pandas.DataFrame([[1, 2]], columns=["a", "a"]))
    with pytest.raises(InvalidArgumentError, match="different names that are strings, got 0"):
        Dataset.from_pandas(pandas.DataFrame([[1]]))
    with pytest.raises(InvalidArgumentError, match="column 'x' of dtype object cannot be read"):
        Dataset.from_pandas(pandas.DataFrame({"x": pandas.Series([1, object()], dtype=object)}))
    with pytest.raises(InvalidTypeError, match="from_polars: a LazyFrame has no rows yet"):
        Dataset.from_polars(polars.LazyFrame({"x": [1]}))
    for value in (3, polars.Series([1])):
        with pytest.raises(InvalidTypeError, match="from_polars: needs a DataFrame, got"):
            Dataset.from_polars(value)
    with pytest.raises(InvalidArgumentError, match="column 'x' has Python objects, which no"):
        Dataset.from_polars(polars.DataFrame({"x": [object()]}))


def test_huggingface_datasets_that_are_refused() -> None:
    rows = datasets.Dataset.from_dict({"x": [1, 2]})
    with pytest.raises(InvalidArgumentError, match="has a transform, which would not be called"):
        Dataset.from_huggingface(rows.with_transform(lambda batch: batch))
    with pytest.raises(InvalidTypeError, match="dict of datasets; choose one of 'train'"):
        Dataset.from_huggingface(datasets.DatasetDict({"train": rows}))
    with pytest.raises(InvalidTypeError, match="needs a datasets.Dataset, got"):
        Dataset.from_huggingface([1])


def test_huggingface_files_travel_as_paths(tmp_path: Path) -> None:
    datasets.Dataset.from_dict({"x": [1, 2, 3], "y": ["a", "b", "c"]}).save_to_disk(str(tmp_path))
    rows = datasets.load_from_disk(str(tmp_path))
    plan = Dataset.from_huggingface(rows).__plan__
    assert [Path(file.path).parent for file in plan.files] == [tmp_path]  # type: ignore[attr-defined]
    renamed = Dataset.from_huggingface(rows.rename_column("x", "z"))
    assert [int(row["z"]) for row in renamed] == [1, 2, 3]
    assert list(Dataset.from_huggingface(rows.with_format(columns=["y"]))[0]) == ["y"]


def test_tables_are_not_copied() -> None:
    rows = datasets.Dataset.from_dict({"x": list(range(20))})
    for table, dataset in (
        (rows.data.table, Dataset.from_huggingface(rows)),
        (rows.data.table, Dataset.from_arrow(rows.data.table)),
    ):
        batch = next(iter(dataset.batch(10)))["x"]
        assert np.shares_memory(batch, table["x"].chunk(0).to_numpy())


NESTED = pa.list_(pa.list_(pa.int16(), 2), 2)


def nest_row(row: int) -> list[list[int]]:
    return [[row, 1], [2, 3]]


def moments(row: int) -> list[list[datetime.datetime]]:
    return [[datetime.datetime(2000, 1, 1 + row)] * 2] * 2


@pytest.mark.parametrize(
    "array",
    [
        pa.array([nest_row(row) for row in range(6)], NESTED).slice(3),
        pa.FixedSizeListArray.from_arrays(
            pa.array([[row, row + 1] for row in range(20)], pa.list_(pa.int16(), 2)).slice(4, 6), 2
        ),
        pa.array([{"a": nest_row(row)} for row in range(6)], pa.struct({"a": NESTED})).slice(3),
        pa.ListArray.from_arrays(
            [0, 1, 3, 6], pa.array([nest_row(row) for row in range(20)], NESTED).slice(7, 6)
        ),
        pa.array(
            [moments(row) for row in range(6)], pa.list_(pa.list_(pa.timestamp("s"), 2), 2)
        ).slice(3),
    ],
    ids=["outer", "inner", "struct", "list", "dates"],
)
def test_fixed_size_lists_in_slices_are_gathered(array: Any) -> None:
    dataset = Dataset.from_arrow(arrow(x=array))
    rows = [plain(row["x"]) for row in dataset]
    assert [plain(row["x"]) for row in dataset.select([2, 0, 1])] == [rows[i] for i in (2, 0, 1)]
    assert [plain(row["x"]) for row in dataset.shard(2, 1)] == rows[1::2]


def plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: plain(part) for name, part in value.items()}
    return value.tolist() if isinstance(value, np.ndarray) else value.to_list()


def test_huggingface_slices_of_nested_sequences_are_gathered() -> None:
    pairs = datasets.Sequence(datasets.Sequence(datasets.Value("int32"), length=2), length=2)
    rows = datasets.Dataset.from_dict(
        {"x": [nest_row(row) for row in range(6)]}, features=datasets.Features({"x": pairs})
    )
    dataset = Dataset.from_huggingface(rows.select(range(3, 6))).select([2, 0])
    assert [row["x"].tolist() for row in dataset] == [nest_row(5), nest_row(3)]


def test_huggingface_streams_without_features() -> None:
    def rows() -> Any:
        yield from ({"x": i, "s": f"{i}"} for i in range(3))

    stream = datasets.IterableDataset.from_generator(rows)
    found = list(Dataset.from_huggingface(stream, columns=["s"]))
    assert found == [{"s": b"0"}, {"s": b"1"}, {"s": b"2"}]
    for source in (
        stream,
        datasets.Dataset.from_dict({"x": [1], "s": ["a"]}).to_iterable_dataset(),
    ):
        with pytest.raises(InvalidArgumentError, match="has no column 'q'; it has 'x', 's'"):
            Dataset.from_huggingface(source, columns=["q"])
        with pytest.raises(InvalidTypeError, match="columns must be a list of names, got 's'"):
            Dataset.from_huggingface(source, columns="s")


def iterable(rows: list[Any], mapped: bool = False) -> Any:
    stream = datasets.IterableDataset.from_generator(lambda: iter(rows))
    return stream.map(lambda row: row) if mapped else stream


@pytest.mark.parametrize("mapped", [False, True])
@pytest.mark.parametrize(
    ("given", "dtype", "found"),
    [
        ([1, 2.5], penstock.float64, [1.0, 2.5]),
        ([2.5] * 256 + [1], penstock.float64, [2.5] * 256 + [1.0]),
        ([None, 1], penstock.int64, [7, 1]),
        ([1] * 256 + [None], penstock.int64, [1] * 256 + [7]),
        ([[], [1], [2, None]], penstock.int64, [[], [1], [2, 7]]),
        ([[1], [2.5]] + [[]] * 255, penstock.float64, [[1.0], [2.5]] + [[]] * 255),
    ],
    ids=str,
)
def test_rows_of_a_stream_may_differ_in_type(
    given: list[Any], dtype: Any, found: list[Any], mapped: bool
) -> None:
    stream = iterable([{"x": value, "s": "a"} for value in given], mapped)
    rows = Dataset.from_huggingface(stream, fill={"x": 7})
    assert rows.element_spec["x"].dtype == dtype
    assert [row["x"].tolist() for row in rows] == found


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([1, "a"], "row 1 has 'x': string, but the rows before have 'x': int64 "),
        ([2**53 + 1, 2.5], "row 1 has 'x': double, but the rows before have 'x': int64 "),
        ([1] * 300 + [2.5], "rows 256 to 300 have 'x': double, but the first rows have 'x': int64"),
        ([1.5] * 256 + ["a"], "rows 256 to 256 have 'x': string, but the first rows have 'x': dou"),
    ],
    ids=["text", "rounded", "later float", "later text"],
)
def test_rows_of_a_stream_that_have_no_common_type_are_refused(
    given: list[Any], message: str
) -> None:
    stream = iterable([{"x": value} for value in given])
    with pytest.raises(InvalidArgumentError, match=rf"{message}.*; state .* dataset.cast\("):
        list(Dataset.from_huggingface(stream))


def test_types_of_a_stream_can_be_stated() -> None:
    stream = iterable([{"x": 1}] * 300 + [{"x": 2.5}])
    stream = stream.cast(datasets.Features({"x": datasets.Value("float64")}))
    assert [row["x"] for row in Dataset.from_huggingface(stream)] == [1.0] * 300 + [2.5]


def test_torch_datasets_that_are_refused() -> None:
    with pytest.raises(InvalidTypeError, match="needs a dataset with __getitem__ and __len__"):
        Dataset.from_torch(3)
    with pytest.raises(InvalidArgumentError, match="num_parallel_calls=2 needs a dataset with"):
        Dataset.from_torch(iter([1]), num_parallel_calls=2)
    with pytest.raises(InvalidArgumentError, match="from_torch: the dataset is empty"):
        Dataset.from_torch(iter([]))


class Failing:
    """A dataset whose item 3 cannot be read."""

    def __len__(self) -> int:
        return 5

    def __getitem__(self, number: int) -> int:
        if number == 3:
            raise KeyError("not there")
        return number


def iterate_failing() -> Any:
    class Rows:
        def __iter__(self) -> Any:
            return map(Failing().__getitem__, range(5))

    return Rows()


@pytest.mark.parametrize("calls", [None, 2])
def test_errors_of_torch_datasets_name_the_method_and_the_index(calls: int | None) -> None:
    line = Failing.__getitem__.__code__.co_firstlineno
    rows = Dataset.from_torch(Failing(), num_parallel_calls=calls).shuffle(5, seed=1)
    place = f"from_torch: __getitem__ at test_table_plans.py:{line} failed for element"
    with pytest.raises(UnknownError, match=rf"{place} \d \(3\): KeyError: 'not there'") as raised:
        list(rows)
    frames = traceback.extract_tb(raised.value.__cause__.__traceback__)  # type: ignore[union-attr]
    assert [frame.name for frame in frames] == ["__getitem__"]
    assert f"__getitem__ at test_table_plans.py:{line}" in rows.explain()
    rows = Dataset.from_torch(iterate_failing())
    with pytest.raises(UnknownError, match=r"from_torch: __iter__ at test_table_plans.py:\d+ fail"):
        list(rows)


def test_bfloat16_tensors_become_elements_and_tensors_again() -> None:
    values = torch.tensor([[1.5, -2.0, 0.1], [0.0, 7.0, float("inf")]], dtype=torch.bfloat16)
    tensors = values.clone().requires_grad_()
    for dataset in (
        Dataset.from_torch(tensors),
        Dataset.from_tensor_slices(values),
        Dataset.range(2).map(lambda number: tensors[int(number)]),
        Dataset.range(2).map(lambda number: (values.T[:, int(number)],)).map(lambda row: row),
        Dataset.from_tensor_slices(np.array([0, 1])).map(lambda number: [*values[int(number)]]),
    ):
        assert dataset.element_spec == penstock.TensorSpec((3,), penstock.bfloat16)
        assert torch.equal(torch.stack(list(dataset.as_torch())), values)


class Pair(NamedTuple):
    x: Any
    y: Any


@pytest.mark.parametrize(
    ("item", "plain"),
    [
        (torch.ones(2, requires_grad=True), np.ones(2, np.float32)),
        (torch.tensor([1 + 2j]).conj(), np.array([1 - 2j], np.complex64)),
        ((torch.tensor(3), "a", np.int8(4)), (np.int64(3), b"a", np.int8(4))),
        ({"b": torch.ones(1), "a": [1, 2]}, {"b": np.ones(1, np.float32), "a": [1, 2]}),
        (Pair(torch.tensor([True]), (2.5,)), Pair(np.array([True]), (2.5,))),
    ],
)
def test_items_of_torch_datasets_become_elements_without_tensors(item: Any, plain: Any) -> None:
    found = Dataset.from_torch([item, item]).batch(2)
    wanted = Dataset.range(2).map(lambda _: plain).batch(2)
    assert found.element_spec == wanted.element_spec
    assert repr(list(found)) == repr(list(wanted))


def test_sparse_tensors_of_torch_datasets_are_refused() -> None:
    with pytest.raises(InvalidTypeError, match="Tensor cannot be an element: .* Sparse layout"):
        list(Dataset.from_torch([torch.ones(2).to_sparse()]))


def test_lists_of_a_table_can_be_padded() -> None:
    rows = Dataset.from_arrow(arrow(tokens=[[1, 2], [3], [], [4, 5, 6]]))
    found = [batch["tokens"].tolist() for batch in rows.padded_batch(2)]
    assert found == [[[1, 2], [3, 0]], [[0, 0, 0], [4, 5, 6]]]
    wide = rows.padded_batch(4, {"tokens": [3]}, {"tokens": np.int64(-1)})
    assert wide.element_spec["tokens"] == penstock.TensorSpec((None, 3), penstock.int64)
    assert next(iter(wide))["tokens"].tolist() == [[1, 2, -1], [3, -1, -1], [-1] * 3, [4, 5, 6]]
    mixed = Dataset.mix({"a": (rows, 1), "b": (rows, 1)}).shuffle(8, seed=1).padded_batch(8)
    assert next(iter(mixed))["tokens"].shape == (8, 3)
    with pytest.raises(InvalidTypeError, match="elements must be arrays, .* use ragged_batch"):
        rows.batch(2).padded_batch(2)


def test_arrays_that_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidTypeError, match="needs a path, got an array; use .*from_tensor"):
        Dataset.from_numpy(np.zeros(3))
    path = tmp_path / "x.npy"
    np.save(path, np.array([{}, {}]), allow_pickle=True)
    with pytest.raises(InvalidArgumentError, match="has Python objects, which only a pickle"):
        Dataset.from_numpy(path)
    np.save(path, np.float32(3))
    with pytest.raises(InvalidArgumentError, match="is a single value and has no rows"):
        Dataset.from_numpy(path)
    np.save(path, np.zeros(3, np.longdouble))
    with pytest.raises(InvalidArgumentError, match="cannot be read: its dtype is"):
        Dataset.from_numpy(path)
    np.save(path, np.zeros(3))
    with pytest.raises(InvalidArgumentError, match="has one array without columns"):
        Dataset.from_numpy(path, columns=["x"])
    np.savez(tmp_path / "x.npz", a=np.zeros(3), b=np.zeros(2))
    with pytest.raises(InvalidArgumentError, match="must have the same number of rows, got"):
        Dataset.from_numpy(tmp_path / "x.npz")
    np.save(tmp_path / "y.npy", np.zeros((3, 2), np.int8))
    with pytest.raises(InvalidArgumentError, match="has .*, but '.*x.npy' has float64"):
        Dataset.from_numpy([path, tmp_path / "y.npy"])


def test_an_empty_list_of_paths_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="needs at least one path"):
        Dataset.from_numpy([])


def test_an_old_feather_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.feather"
    path.write_bytes(b"FEA1" + bytes(100))
    with pytest.raises(InvalidArgumentError, match="is a Feather file of version 1"):
        Dataset.from_arrow(path)


def test_arrow_files_of_polars(tmp_path: Path) -> None:
    frame = polars.DataFrame({"x": [1, 2, 3], "s": ["a", "b", "c"]})
    frame.write_ipc(tmp_path / "x.arrow")
    frame.write_ipc_stream(tmp_path / "stream.arrow")
    for name in ("x.arrow", "stream.arrow"):
        rows = list(Dataset.from_arrow(tmp_path / name))
        assert rows == [{"x": 1, "s": b"a"}, {"x": 2, "s": b"b"}, {"x": 3, "s": b"c"}]


LONG = "a string of more than twelve bytes"


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (pa.string_view(), ["a", "b", LONG]),
        (pa.binary_view(), [b"a", b"b", LONG.encode()]),
        (pa.list_(pa.string_view()), [["a"], [], [LONG, "b"]]),
        (pa.large_list(pa.string_view()), [["a"], [], [LONG, "b"]]),
        (pa.list_(pa.string_view(), 2), [["a", "b"], ["c", LONG], ["d", "e"]]),
        (pa.struct({"s": pa.string_view()}), [{"s": "a"}, {"s": LONG}, {"s": "b"}]),
        (pa.dictionary(pa.int8(), pa.string_view()), ["a", LONG, "a"]),
    ],
    ids=str,
)
def test_string_views_are_read_in_any_order(kind: Any, values: list[Any]) -> None:
    views = kind.value_type if pa.types.is_dictionary(kind) else kind
    array = pa.array([values[0], *values], views)
    array = array if views is kind else pa.DictionaryArray.from_arrays([3, 0, 2, 3], array)
    expected = array.to_pylist()[1:]
    dataset = Dataset.from_arrow(arrow(x=array.slice(1)))
    for order in ([0, 1, 2], [2, 0, 1]):
        rows = [as_text(row["x"]) for row in dataset.select(order)]
        assert rows == [as_text(expected[number]) for number in order]


def as_text(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: as_text(part) for name, part in value.items()}
    if isinstance(value, list | np.ndarray):
        return [as_text(part) for part in value]
    return value if isinstance(value, bytes) else value.encode()


def test_missing_string_views_are_filled(tmp_path: Path) -> None:
    table = arrow(
        s=pa.array(["a", None], pa.string_view()),
        d=pa.DictionaryArray.from_arrays([None, 0], pa.array(["b"], pa.string_view())),
    )
    rows = [{"s": b"a", "d": b""}, {"s": b"", "d": b"b"}]
    assert list(Dataset.from_arrow(table, fill="")) == rows
    pa.parquet.write_table(table.select(["s"]), tmp_path / "x.parquet")
    assert [row["s"] for row in Dataset.from_parquet(tmp_path / "x.parquet", fill="")] == [
        b"a",
        b"",
    ]


@pytest.mark.parametrize("new", [pa.ipc.new_file, pa.ipc.new_stream])
def test_arrow_files_without_marks(new: Any, tmp_path: Path) -> None:
    """As Arrow wrote them before 0.15."""
    path = tmp_path / "x.arrow"
    version = pa.ipc.MetadataVersion.V4
    options = pa.ipc.IpcWriteOptions(use_legacy_format=True, metadata_version=version)
    table = arrow(x=[1, 2, 3])
    with new(path, table.schema, options=options) as writer:
        writer.write_table(table, 2)
    assert [int(row["x"]) for row in Dataset.from_arrow(path)] == [1, 2, 3]


def test_tables_without_rows() -> None:
    dataset = Dataset.from_arrow(arrow(x=pa.array([], pa.int64())))
    assert len(dataset) == 0
    assert list(dataset) == list(dataset.batch(2)) == []


def test_a_file_that_is_written_again_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "x.npy"
    np.save(path, np.arange(3))
    dataset = Dataset.from_numpy(path)
    np.save(path, np.arange(3)[::-1])
    with pytest.raises(FailedPreconditionError, match="has changed .*it was written again; make"):
        list(dataset)


def write_mapped(path: Path, start: int, rows: int = 100_000) -> Dataset:
    """A file of numbers, in the format that its suffix names."""
    numbers = np.arange(start, start + rows)
    if path.suffix == ".npy":
        np.save(path, numbers)
        return Dataset.from_numpy(path)
    if path.suffix == ".npz":
        np.savez(path, x=numbers)
        return Dataset.from_numpy(path)
    new = pa.ipc.new_file if path.suffix == ".feather" else pa.ipc.new_stream
    with new(path, pa.schema({"x": pa.int64()})) as writer:
        writer.write_table(arrow(x=numbers), rows // 4)
    return Dataset.from_arrow(path)


@pytest.mark.parametrize("suffix", ["npy", "npz", "feather", "arrows"])
def test_a_mapped_file_that_changes_after_a_pass_is_noticed(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"x.{suffix}"
    dataset = write_mapped(path, 0)
    next(iter(dataset))
    stamp = path.stat().st_mtime_ns
    write_mapped(path, 7)
    os.utime(path, ns=(stamp, stamp + 1))
    for rows in (dataset, dataset.shuffle(9, seed=1), dataset.repeat(2)):
        with pytest.raises(FailedPreconditionError, match="it was written again; make the dataset"):
            next(iter(rows))
    os.utime(path, ns=(stamp, stamp))
    assert len(list(dataset.take(3))) == 3
    os.truncate(path, 4096)
    for rows in (dataset, dataset.shuffle(9, seed=1)):
        with pytest.raises(FailedPreconditionError, match=r"it had \d+ bytes and has 4096; make"):
            list(rows)
    assert list(dataset.ignore_errors()) == []


def test_a_mapped_file_that_was_deleted_can_still_be_read(tmp_path: Path) -> None:
    path = tmp_path / "x.npy"
    dataset = write_mapped(path, 0, 9)
    next(iter(dataset))
    path.unlink()
    assert [int(row) for row in dataset] == list(range(9))


def test_a_package_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(UnavailableError, match="from_parquet: needs pyarrow; install it with: pip"):
        Dataset.from_parquet(__file__)
