import numpy as np
import pytest

from penstock.element.optional import Optional
from penstock.element.ragged import Ragged
from penstock.element.spec import (
    DatasetSpec,
    IteratorSpec,
    NoneTensorSpec,
    OptionalSpec,
    RaggedTensorSpec,
    TensorShape,
    TensorSpec,
    TypeSpec,
    fits,
    relax,
)
from penstock.element.values import spec_of_leaf, zeros
from penstock.errors import InvalidArgumentError, InvalidTypeError

INT = TensorSpec((), "int64")
ROW = TensorSpec([None, 2], "float32")
RAGGED = RaggedTensorSpec([2, None], "int32", 1)


@pytest.mark.parametrize(
    ("a", "b", "both"),
    [
        ([1, 2], [1, 2], [1, 2]),
        ([1, 2], [3, 2], [None, 2]),
        ([None], [3], [None]),
        ([1], [1, 1], None),
        (None, [1], None),
    ],
)
def test_relaxed_shapes_fit_both(a, b, both):
    relaxed = TensorShape(a).relax(TensorShape(b))
    assert relaxed == TensorShape(b).relax(TensorShape(a)) == TensorShape(both)
    assert all(relaxed.fits(tuple(dims)) for dims in (a, b) if dims is not None)


def test_shapes_behave_like_sequences_of_dimensions():
    shape = TensorShape([None, 2, 3])
    assert (len(shape), shape[1], shape[1:], list(shape)) == (3, 2, [2, 3], [None, 2, 3])
    assert shape.as_list() == [None, 2, 3]
    assert (shape.rest(), shape.prepend(4)) == ([2, 3], [4, None, 2, 3])
    assert not shape.is_fully_defined()
    assert TensorShape(3) == [3]
    assert str(TensorShape(None)) == "<unknown>"


def test_a_shape_of_unknown_rank_has_no_dimensions():
    with pytest.raises(InvalidArgumentError, match="the rank is unknown"):
        len(TensorShape(None))


@pytest.mark.parametrize("dimension", [-1, 1.5, "a"])
def test_dimensions_are_numbers_or_none(dimension):
    with pytest.raises(InvalidArgumentError, match="a dimension is a number >= 0 or None, got"):
        TensorShape([dimension])


@pytest.mark.parametrize("spec", [INT, ROW, RAGGED, TensorSpec(None, "string")])
@pytest.mark.parametrize("size", [None, 4])
def test_unbatch_reverses_batch(spec, size):
    assert spec.batch(size).rows == (size if spec.shape.rank is not None else None)
    assert spec.batch(size).unbatch() == spec


@pytest.mark.parametrize("spec", [NoneTensorSpec(), OptionalSpec(INT)])
def test_specs_without_rows_stay_the_same_in_batches(spec):
    assert spec.batch(3) is spec.unbatch() is spec
    assert spec.rows is None


@pytest.mark.parametrize("spec", [INT, ROW, RAGGED, NoneTensorSpec()])
def test_specs_fit_the_values_that_are_made_for_them(spec):
    value = zeros(spec)
    assert spec.is_compatible_with(value)
    assert spec.fits(spec_of_leaf(value))


@pytest.mark.parametrize(
    ("spec", "value"),
    [
        (INT, np.int32(1)),
        (INT, np.zeros(1, np.int64)),
        (INT, "a"),
        (INT, None),
        (ROW, np.zeros((1, 3), np.float32)),
        (ROW, TensorSpec([None, 3], "float32")),
        (RAGGED, Ragged.from_rows([[1]], np.int64)),
        (RAGGED, Ragged.from_rows([[1]], np.int32)),
        (NoneTensorSpec(), 0),
        (DatasetSpec(INT), 0),
        (OptionalSpec(INT), 0),
        (IteratorSpec(INT), 0),
    ],
)
def test_specs_do_not_fit_values_of_other_types_dtypes_or_shapes(spec, value):
    assert not spec.fits(value)


def test_specs_of_objects_fit_these_objects():
    assert OptionalSpec(INT).fits(Optional.from_value(np.int64(1)))
    assert not OptionalSpec(INT).fits(Optional.from_value(1.0))
    assert DatasetSpec(INT).fits(DatasetSpec(INT))
    assert not DatasetSpec(INT).fits(DatasetSpec(ROW))
    with pytest.raises(AssertionError, match="TypeSpec does not define fits"):
        TypeSpec().fits(0)


def test_none_in_the_spec_of_a_dataset_is_the_spec_of_none():
    spec = DatasetSpec({"a": INT, "b": None})
    assert spec == DatasetSpec({"a": INT, "b": NoneTensorSpec()})
    assert spec.is_subtype_of(spec)
    assert spec.most_specific_common_supertype([spec]) == spec


def test_structures_are_relaxed_leaf_by_leaf():
    one = {"a": TensorSpec([2], "int64"), "b": (INT, RAGGED)}
    other = {"a": TensorSpec([3], "int64"), "b": (INT, RaggedTensorSpec([5, None], "int32", 1))}
    expected = (INT, RaggedTensorSpec([None, None], "int32", 1))
    assert relax(one, other) == {"a": TensorSpec([None], "int64"), "b": expected}


@pytest.mark.parametrize("other", [(INT, INT), TensorSpec((), "int32"), RAGGED, NoneTensorSpec()])
def test_specs_that_nothing_fits_together_cannot_be_relaxed(other):
    with pytest.raises(InvalidTypeError, match=r"concatenate: elements must have the same"):
        relax(INT, other, "concatenate")


def test_an_element_fits_if_its_structure_and_all_leaves_do():
    spec = (INT, {"a": ROW})
    assert fits(spec, (np.int64(1), {"a": np.zeros((5, 2), np.float32)}))
    assert not fits(spec, (np.int64(1), {"b": np.zeros((5, 2), np.float32)}))
    assert not fits(spec, (np.int64(1), {"a": np.zeros((5, 1), np.float32)}))


def test_specs_print_as_in_tensorflow():
    assert repr(TensorSpec([None, 1], "float32", "x")) == (
        "TensorSpec(shape=(None, 1), dtype=tf.float32, name='x')"
    )
    assert repr(RAGGED) == "RaggedTensorSpec(TensorShape([2, None]), tf.int32, 1, tf.int64)"
    assert repr(DatasetSpec(INT)).startswith("DatasetSpec(TensorSpec(")
