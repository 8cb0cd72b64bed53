"""Arrays that are mapped from files travel as the place of their bytes."""

import os

import numpy as np
import pytest

from penstock.data import Dataset
from penstock.engine.mapped_files import open_file_array, refer_to_file
from penstock.errors import FailedPreconditionError
from penstock.plan import array_references, codec
from penstock.plan.references import decode_by_reference, encode_by_reference


@pytest.fixture
def path(tmp_path):
    np.save(tmp_path / "rows.npy", np.arange(24_000, dtype=np.int32).reshape(6000, 4))
    return tmp_path / "rows.npy"


VIEWS = {
    "whole": lambda rows: rows,
    "part": lambda rows: rows[100:2000],
    "steps": lambda rows: rows[::3, 1:3],
    "backwards": lambda rows: rows[::-1],
    "turned": lambda rows: rows.T,
    "plain": np.asarray,
    "frozen": lambda rows: Dataset.from_tensor_slices(rows).__plan__.data.chunk.columns[0],
}


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
def test_every_view_of_a_map_is_found_in_the_file(path, view):
    array = view(np.load(path, mmap_mode="r"))
    opened = open_file_array(refer_to_file(array))
    assert opened.dtype == array.dtype
    np.testing.assert_array_equal(opened, array)


def test_a_part_that_is_mapped_behind_the_first_page(tmp_path):
    np.arange(10_000, dtype=np.int64).tofile(tmp_path / "rows")
    array = np.memmap(tmp_path / "rows", np.int64, "r+", offset=40_008, shape=(4000,))[7:]
    np.testing.assert_array_equal(open_file_array(refer_to_file(array)), array)


def test_arrays_that_no_file_holds_have_no_reference(path):
    assert refer_to_file(np.zeros(9)) is None
    assert refer_to_file(np.load(path, mmap_mode="c")) is None
    assert refer_to_file(np.load(path, mmap_mode="r") + 1) is None


def test_a_file_that_was_removed_or_replaced_has_no_reference(path, tmp_path):
    removed = np.load(path, mmap_mode="r")
    os.unlink(path)
    assert refer_to_file(removed) is None
    np.save(path, np.zeros((6000, 4), np.int32))
    assert refer_to_file(removed) is None
    assert refer_to_file(np.load(path, mmap_mode="r")) is not None


def test_a_process_without_the_file_says_so(path):
    reference = refer_to_file(np.load(path, mmap_mode="r"))
    with open(path, "ab") as file:
        file.write(b"more")
    with pytest.raises(FailedPreconditionError, match=r"has 96132 bytes here and 96128 where"):
        open_file_array(reference)
    os.unlink(path)
    with pytest.raises(FailedPreconditionError, match=r"rows\.npy', .* cannot be read here"):
        open_file_array(reference)


ENCODINGS = {
    "pickled": (codec.encode, codec.decode),
    "by_reference": (
        encode_by_reference,
        lambda data, resolve: decode_by_reference(data, (), resolve),
    ),
}


@pytest.mark.parametrize(("encode", "decode"), ENCODINGS.values(), ids=ENCODINGS)
def test_plans_name_the_file_instead_of_its_bytes(path, monkeypatch, encode, decode):
    monkeypatch.setattr(array_references, "LARGE", 4096)
    dataset = Dataset.from_tensor_slices({"x": np.load(path, mmap_mode="r"), "y": range(6000)})
    encoded = encode(dataset.__plan__, refer_to_file)
    assert len(encoded) < path.stat().st_size
    assert decode(encoded, open_file_array) == dataset.__plan__


def test_a_plan_without_references_needs_no_file(path, monkeypatch):
    monkeypatch.setattr(array_references, "LARGE", 4096)
    plan = Dataset.from_tensor_slices(np.load(path, mmap_mode="r")).__plan__
    encoded = codec.encode(plan)
    os.unlink(path)
    assert codec.decode(encoded) == plan


def test_functions_get_the_maps_that_they_use(path, monkeypatch):
    monkeypatch.setattr(array_references, "LARGE", 4096)
    rows = np.load(path, mmap_mode="r")
    plan = Dataset.range(3).map(lambda i: rows[i, 0]).__plan__
    encoded = codec.encode(plan, refer_to_file)
    assert len(encoded) < 4096
    decoded = codec.decode(encoded, open_file_array)
    assert decoded.function.call(2) == 8
