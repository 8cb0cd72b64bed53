"""`pack`: the rows equal those of the list model, also after a resume; and clear errors."""

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.data import Dataset
from penstock.data.experimental import service
from penstock.element.ragged import Ragged
from penstock.element.spec import TensorSpec
from penstock.engine.streams import packing
from penstock.errors import InvalidArgumentError, InvalidTypeError
from tests.effort import examples
from tests.engine.driving import (
    drain_stream,
    model,
    open_stream,
    reload_state,
    saves,
    take_elements,
)

LENGTHS = [3, 0, 5, 1, 9, 2, 2, 7, 4, 4, 1]
DOCUMENTS = [np.arange(length) + 10 * number for number, length in enumerate(LENGTHS)]
TOKENS = TensorSpec((None,), np.int64)


def slice_documents(documents: list[Any]) -> Dataset:
    return Dataset.from_tensor_slices(Ragged.from_rows(documents, np.int64))


def map_documents(documents: list[Any]) -> Dataset:
    return Dataset.range(len(documents)).map(lambda i: documents[i], output_signature=TOKENS)


def mask_documents(documents: list[Any]) -> Dataset:
    """Two features and a mask, as lists of arrays."""
    pairs = [{"x": d, "y": d / 2, "loss_mask": d % 3 > 0} for d in documents]
    return Dataset.range(len(documents)).map(lambda i: pairs[i])


SOURCES = {"ragged": slice_documents, "map": map_documents, "features": mask_documents}


@st.composite
def plans(draw: Any) -> Any:
    lengths = draw(st.lists(st.integers(0, 12), max_size=25))
    source = draw(st.sampled_from(list(SOURCES)))
    separator: Any = draw(st.sampled_from([None, 99]))
    if source == "features" and separator is not None:
        separator = {"x": 99, "y": 0.5}
    ds = SOURCES[source]([np.arange(n) + 20 * i for i, n in enumerate(lengths)])
    return ds.pack(
        draw(st.integers(1, 12)),
        draw(st.sampled_from(["first_fit", "best_fit", "concat_split"])),
        separator=separator,
        padding=draw(st.sampled_from([0, -1])) if source != "features" else 0,
        open_rows=draw(st.integers(1, 4)),
        too_long=draw(st.sampled_from(["error", "split", "truncate"])),
    )._plan


@examples(60)
@given(plan=plans(), limit=st.integers(1, 9), data=st.data())
def test_any_rows_are_those_of_the_list_model_and_resume_exactly(plan, limit, data):
    expected = model(plan)
    assert drain_stream(open_stream(plan), limit) == expected
    count, state = data.draw(st.sampled_from(list(saves(plan, limit))))
    assert drain_stream(open_stream(plan, reload_state(state)), 7) == expected[count:]


@pytest.mark.parametrize("strategy", ["first_fit", "best_fit", "concat_split"])
def test_no_token_is_lost_or_torn_from_its_document(strategy):
    rows = list(slice_documents(DOCUMENTS).pack(9, strategy, open_rows=3))
    segments: list[list[int]] = []
    for row in rows:
        for number in range(1, row["segment_ids"].max() + 1):
            inside = row["segment_ids"] == number
            assert row["positions"][inside].tolist() == list(range(inside.sum()))
            segments.append(row["tokens"][inside].tolist())
        assert (row["tokens"][row["segment_ids"] == 0] == 0).all()
    if strategy == "concat_split":
        assert list(itertools.chain(*segments)) == np.concatenate(DOCUMENTS).tolist()
    else:
        assert sorted(segments) == sorted(d.tolist() for d in DOCUMENTS if len(d))


def test_a_token_counts_if_its_segment_has_one_before_it_and_its_own_mask_is_true():
    mask = np.array([False, False, True, True])
    ds = Dataset.from_tensors({"tokens": np.array([4, 5, 6, 7]), "loss_mask": mask}).repeat(2)
    row = next(iter(ds.pack(12, separator=1)))
    assert row["loss_mask"].tolist() == [False, False, True, True, True] * 2 + [False] * 2


def test_features_keep_their_dtypes_and_the_spec_says_so():
    ds = Dataset.from_tensors({"a": np.ones(3, np.uint8), "b": np.ones(3, np.float32)})
    packed = ds.pack(4, padding={"b": 0.5})
    row = next(iter(packed))
    assert {name: spec.dtype.name for name, spec in packed.element_spec.items()} == {
        name: str(array.dtype) for name, array in row.items()
    }
    assert all(spec.shape == (4,) for spec in packed.element_spec.values())
    assert (row["a"].tolist(), row["b"].tolist()) == ([1, 1, 1, 0], [1, 1, 1, 0.5])


def test_an_endless_dataset_gives_endless_rows():
    packed = slice_documents(DOCUMENTS).repeat().pack(9)
    assert packed.cardinality() == -1
    assert len(list(itertools.islice(packed, 20))) == 20


def test_open_rows_let_go_of_chunks_that_are_used_up(monkeypatch):
    monkeypatch.setattr(packing, "_MOST_VIEWED", 0)
    plan = slice_documents(DOCUMENTS).pack(10)._plan
    stream = packing.PackStream(plan, open_stream(plan.input), None)
    stream._pack(stream._read(100), 100)
    assert stream._open
    assert all(row.views[0][0].base is None for row in stream._open)
    assert drain_stream(open_stream(plan), 3) == model(plan)


@pytest.mark.parametrize("strategy", ["best_fit", "concat_split"])
def test_workers_give_the_local_rows_from_every_state(strategy):
    local = map_documents(DOCUMENTS).pack(9, strategy, separator=5, too_long="split")
    expected = model(local._plan)
    remote = local.apply(service.distribute("distributed_epoch", "local://2"))
    iterator = iter(remote)
    for count in range(len(expected)):
        if count % 3 == 0:
            again = iter(remote)
            again.load_state_dict(iterator.state_dict())
            assert take_elements(again) == expected[count:]
            again.close()
        assert take_elements(iterator, 1) == [expected[count]]
    iterator.close()


def pull_all(ds: Dataset) -> None:
    list(ds)


@pytest.mark.parametrize(
    ("make", "kind", "message"),
    [
        (lambda d: d.pack(0), InvalidArgumentError, "length must be at least 1, got 0"),
        (
            lambda d: d.pack(9, "worst_fit"),
            InvalidArgumentError,
            'strategy must be one of "first_fit", "best_fit", "concat_split", got \'worst_fit\'',
        ),
        (lambda d: d.pack(9, too_long="drop"), InvalidArgumentError, "too_long must be one of"),
        (lambda d: d.pack(9, open_rows=0), InvalidArgumentError, "open_rows must be at least 1"),
        (lambda d: d.pack(9, separator="x"), InvalidTypeError, "separator must be a number"),
        (lambda d: d.pack(9, padding=[1]), InvalidTypeError, "padding must be a number, or a dict"),
        (
            lambda d: d.pack(9, separator={"y": 1}),
            InvalidArgumentError,
            r"separator must have a value for each of the features \['tokens'\]",
        ),
        (
            lambda d: d.pack(9, separator=1.5),
            InvalidArgumentError,
            "separator 1.5 cannot be stored as int64 without loss",
        ),
        (
            lambda d: pull_all(d.pack(6)),
            InvalidArgumentError,
            r'an element has 9 tokens, more than the length 6; too_long="split" puts it',
        ),
    ],
)
def test_wrong_arguments_are_refused(make, kind, message):
    with pytest.raises(kind, match=f"^Dataset.pack: {message}"):
        make(slice_documents(DOCUMENTS))


def numbers(count: int) -> np.ndarray:
    return np.arange(count)


@pytest.mark.parametrize(
    ("element", "kind", "message"),
    [
        (np.int64(1), InvalidTypeError, "every feature must be a 1-D array of tokens"),
        ((numbers(2), numbers(2)), InvalidTypeError, "every feature must be a 1-D array of tokens"),
        ({"x": np.ones((2, 2))}, InvalidTypeError, "every feature must be a 1-D array of tokens"),
        (np.array([b"a"], object), InvalidTypeError, "'tokens' holds strings; map them to numbers"),
        ({"positions": numbers(2)}, InvalidArgumentError, "'positions', which packing adds itself"),
        ({"x": numbers(2), "loss_mask": numbers(2)}, InvalidTypeError, "must be bool, got int64"),
        ({"loss_mask": numbers(2) > 0}, InvalidArgumentError, "elements have no feature"),
    ],
)
def test_elements_that_are_not_sequences_of_numbers_are_refused(element, kind, message):
    with pytest.raises(kind, match=message):
        Dataset.from_tensors(element).pack(4)


@pytest.mark.parametrize(
    ("element", "message"),
    [
        ({"x": numbers(2), "y": numbers(3)}, "have different lengths, {'x': 2, 'y': 3}"),
        ({"x": numbers(2), "y": np.int64(3)}, "the feature 'y' must be a 1-D array"),
        ((numbers(2), numbers(2)), "elements must be one array or a dict of arrays"),
        ({"x": {"z": numbers(2)}}, "elements must be one array or a dict of arrays"),
    ],
)
def test_an_element_that_does_not_fit_is_one_error(element, message):
    """The spec is not known before the function is called, so that the stream finds it."""
    packed = Dataset.range(2).map(lambda i: element).pack(4)
    iterator = iter(packed)
    for _ in range(2):
        with pytest.raises(InvalidArgumentError, match=message):
            next(iterator)
    assert list(iterator) == []
