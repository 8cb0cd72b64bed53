"""Looking at datasets: `peek`, `diff`, `benchmark`, `repr`, and errors for misspelt names."""

from typing import Any

import numpy as np
import pandas
import pytest

import penstock
from penstock import Dataset, Ragged
from penstock.errors import InvalidArgumentError, InvalidTypeError

TEN = Dataset.range(10)


def test_peek_gives_the_first_elements_and_no_more() -> None:
    assert list(map(int, TEN.peek(3))) == [0, 1, 2]
    assert len(TEN.peek(30)) == 10
    assert TEN.peek(0) == []
    with pytest.raises(InvalidArgumentError, match=r"Dataset.peek: count"):
        TEN.peek(-1)


def replace_element(at: int, value: Any) -> Dataset:
    return TEN.map(lambda x: np.int64(value) if x == at else x)


@pytest.mark.parametrize(
    ("one", "two", "words"),
    [
        (TEN, TEN, ""),
        (TEN, replace_element(4, 7), "element 4 is 4 in the first dataset, 7 in the second"),
        (TEN, TEN.take(6), "element 6 does not exist in the second, which has only 6"),
        (TEN.take(2), TEN, "element 2 does not exist in the first dataset, which has only 2"),
        (
            TEN.batch(5),
            replace_element(7, 0).batch(5),
            "element 1 at [2] is 7 in the first dataset, 0",
        ),
        (TEN.batch(5), TEN.batch(4), "element 0 is int64 of shape (5,) in the first dataset, int"),
        (TEN, TEN.map(np.float32), "element 0 is a scalar of int64 in the first dataset, a scalar"),
        (TEN.map(lambda x: (x, x)), TEN.map(lambda x: (x, x * x)), "element 2, component 1, is 2"),
        (
            TEN,
            TEN.map(lambda x: {"a": x}),
            "element 0 has the structure * in the first dataset, {'",
        ),
        (TEN.map(lambda x: (x, {"a": x})), TEN, "element 0 has the structure (*, {'a': *}) in the"),
        (TEN.map(lambda x: b"a"), TEN.map(lambda x: b"b"), "element 0 is b'a' in the first"),
        (
            TEN.window(3),
            replace_element(4, 0).window(3),
            "element 1 is a dataset: its element 1 is 4",
        ),
        (
            Dataset.from_tensors(Ragged.from_rows([[1], [2, 3]])),
            Dataset.from_tensors(Ragged.from_rows([[1], [2, 4]])),
            "element 0 is ",
        ),
    ],
)
def test_diff_finds_the_first_difference(one: Dataset, two: Dataset, words: str) -> None:
    found = one.diff(two)
    assert found.startswith(words)
    assert bool(found) == bool(words)


def test_numbers_that_are_none_are_equal() -> None:
    made = Dataset.from_tensor_slices([1.0, np.nan])
    assert made.diff(made.map(lambda x: x)) == ""


def test_diff_needs_a_dataset() -> None:
    with pytest.raises(InvalidTypeError, match="other must be a Dataset, got 3"):
        TEN.diff(3)  # type: ignore[arg-type]


def test_a_benchmark_counts_elements_and_names_the_bottleneck() -> None:
    found = TEN.batch(2).benchmark()
    assert found.elements == 5
    assert found.megabytes == pytest.approx(80e-6)
    assert "elements/s" in str(found)
    assert "bottleneck:" in str(found)


def test_a_benchmark_of_an_endless_dataset_ends() -> None:
    assert TEN.repeat().benchmark(seconds=0).elements == 1


def test_an_empty_dataset_can_be_measured() -> None:
    assert TEN.take(0).benchmark().elements_per_second == 0


def test_a_misspelt_name_leads_to_the_right_one() -> None:
    with pytest.raises(
        AttributeError, match="Dataset.shufffle does not exist; did you mean shuffle"
    ):
        TEN.shufffle(3)  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match="Dataset.from_tenor_slices .* from_tensor_slices"):
        _ = Dataset.from_tenor_slices  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match="Dataset.from_csv .* use penstock.data.experimental"):
        _ = Dataset.from_csv  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match="penstock.Datasets does not exist; did you mean Dat"):
        penstock.Datasets  # noqa: B018
    with pytest.raises(AttributeError, match="Dataset.state_dict .* iterator = iter"):
        TEN.state_dict()  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match="Dataset.distribute .*service.distribute.*local://2"):
        TEN.distribute("local://2")  # type: ignore[attr-defined]
    assert not hasattr(TEN, "_private")
    assert not hasattr(TEN, "nothing_like_it")


@pytest.mark.parametrize("name", ["strings", "py_function", "math", "nn", "DataLoader"])
def test_names_of_others_say_what_to_write_instead(name: str) -> None:
    with pytest.raises(AttributeError, match=rf"penstock.{name} does not exist: \w+ "):
        getattr(penstock, name)


@pytest.mark.parametrize(
    ("method", "name", "instead"),
    [
        (TEN.batch, "drop_last", "drop_remainder=True"),
        (TEN.batch, "collate_fn", "padded_batch"),
        (TEN.padded_batch, "drop_last", "drop_remainder=True"),
        (TEN.map, "num_workers", "num_parallel_calls=AUTOTUNE"),
        (TEN.map, "batched", "vectorized=True"),
        (TEN.as_torch, "batch_size", r"\.batch\("),
    ],
)
def test_arguments_of_a_dataloader_lead_to_ours(method: Any, name: str, instead: str) -> None:
    own = f"Dataset.{method.__name__}"
    with pytest.raises(TypeError, match=f"{own} has no argument {name}: .*{instead}"):
        method(4, **{name: 2})


def test_nothing_is_promised_in_place_of_a_name_that_exists() -> None:
    from penstock.missing_names import _INSTEAD

    assert not set(_INSTEAD) & set(penstock.__all__)


def test_specs_of_tensorflow_are_named_as_such() -> None:
    theirs = type("TensorSpec", (), {"__module__": "tensorflow.python.framework.tensor"})()
    with pytest.raises(InvalidTypeError, match="TensorFlow's own: write penstock.TensorSpec"):
        Dataset.from_generator(lambda: iter([1]), output_signature=theirs)


def test_a_missing_value_in_a_list_is_named() -> None:
    with pytest.raises(InvalidArgumentError, match="replace each None, for example by -1"):
        Dataset.from_tensor_slices([1, None, 3])


def test_elements_that_do_not_fit_into_a_batch_are_named() -> None:
    rows = TEN.map(lambda x: np.zeros(2 + (x == 7)))
    words = r"element 0 of the batch has the shape \(2,\), but element 3 has \(3,\)"
    with pytest.raises(InvalidArgumentError, match=words):
        list(rows.batch(4))


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (TEN.batch(5), r"batch\(size=2\) became batch\(size=5\);"),
        (TEN.skip(1).batch(2), r"nothing became skip\(count=1\);"),
        (TEN, r"batch\(size=2\) became nothing;"),
        (Dataset.range(9).batch(2), r"range\(.*=10.*\) became range\(.*=9.*\);"),
    ],
)
def test_a_state_of_another_pipeline_says_what_differs(other: Dataset, words: str) -> None:
    state = iter(TEN.batch(2)).state_dict()
    with pytest.raises(InvalidArgumentError, match=f"another pipeline: {words}"):
        iter(other).load_state_dict(state)


def test_a_state_without_operators_is_still_checked() -> None:
    state = iter(TEN.batch(2)).state_dict()
    del state["operators"]
    iter(TEN.batch(2)).load_state_dict(state)
    with pytest.raises(InvalidArgumentError, match="another pipeline: 'batch:.*' became 'batch:"):
        iter(TEN.batch(5)).load_state_dict(state)


def test_a_frame_of_different_columns_names_the_ways_out() -> None:
    frame = pandas.DataFrame({"x": [1, 2], "name": ["a", "b"]})
    with pytest.raises(InvalidArgumentError, match="use Dataset.from_pandas .* a dict of columns"):
        Dataset.from_tensor_slices(frame)
    assert len(Dataset.from_tensor_slices(dict(frame))) == 2
    assert len(Dataset.from_tensor_slices(frame[["name"]])) == 2
