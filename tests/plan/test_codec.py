"""Plans as bytes and as numbers."""

import functools
import importlib
import pickle
import subprocess
import sys
from dataclasses import dataclass
from types import FunctionType, ModuleType
from typing import Any

import numpy as np
import pytest

from penstock import Ragged
from penstock.data import Dataset, Options, TextLineDataset
from penstock.element.dtypes import int64
from penstock.errors import DataLossError, InvalidArgumentError
from penstock.plan import codec
from penstock.plan.functions import Function
from penstock.plan.nodes import Map, Range
from penstock.plan.references import decode_by_reference, encode_by_reference
from penstock.plan.resume import with_seeds


@dataclass
class Point:
    x: Any
    y: Any


def scale_number(factor: int, number: Any) -> Any:
    return number * factor


def plans() -> list[Dataset]:
    ten = Dataset.range(10)
    return [
        ten,
        Dataset.range(11),
        ten.batch(2),
        ten.batch(2, drop_remainder=True),
        ten.map(lambda n: n + 1),
        ten.map(lambda n: n + 2),
        ten.map(functools.partial(scale_number, 2)),
        ten.map(functools.partial(scale_number, 3)),
        ten.shuffle(10, seed=1),
        ten.shuffle(10, seed=2),
        Dataset.from_tensor_slices([1, 2]),
        Dataset.from_tensor_slices([1, 3]),
        Dataset.from_tensor_slices(np.array([1, 2])),
        Dataset.from_tensor_slices(["a", "b"]),
        Dataset.from_tensor_slices({"a": [1, 2]}),
        Dataset.from_tensor_slices(Point([1, 2], [3, 4])),
        Dataset.from_tensor_slices(Ragged.from_rows([[1], [2, 3]])),
        Dataset.from_tensor_slices(Ragged.from_rows([[1, 2], [3]])),
        Dataset.zip((ten, ten)),
        Dataset.zip({"a": ten, "b": ten}),
        ten.cache(),
        TextLineDataset("a"),
        TextLineDataset("b"),
        ten.with_options(Options(deterministic=False)),
        Dataset.from_tensors(ten),
    ]


def test_fingerprints_of_different_plans_differ() -> None:
    first = [int(ds.fingerprint()) for ds in plans()]
    assert first == [int(ds.fingerprint()) for ds in plans()]
    assert len(set(first)) == len(first)


@pytest.mark.parametrize(
    "wrap", [lambda held: held, lambda held: [held], lambda held: {"a": (held, 1)}]
)
def test_fingerprints_see_all_that_a_function_holds(wrap: Any) -> None:
    def capture_value(held: Any) -> Dataset:
        return Dataset.range(3).map(lambda n: (n, held)[0])

    def default(held: Any) -> Dataset:
        def call(n: Any, *, more: Any = held) -> Any:
            return n

        return Dataset.range(3).map(call)

    numbers = np.arange(5000.0)
    other = numbers.copy()
    other[2500] += 1e-9
    for held in ([numbers, other], [numbers.astype(str).astype(object), other.astype(object)]):
        for made in (capture_value, default):
            first, same, second = (made(wrap(one)) for one in (held[0], held[0].copy(), held[1]))
            assert first.fingerprint() == same.fingerprint() != second.fingerprint()


def test_fingerprints_are_the_same_in_another_process() -> None:
    program = (
        "from penstock.data import Dataset;"
        "print(Dataset.range(9).map(lambda n: n + 1).batch(2).fingerprint())"
    )
    runs = {
        subprocess.run([sys.executable, "-c", program], capture_output=True, check=True).stdout
        for _ in range(2)
    }
    assert len(runs) == 1


def test_a_decoded_plan_gives_the_same_elements() -> None:
    for ds in plans():
        copy = codec.decode(codec.encode(ds._plan))
        assert codec.fingerprint(copy) == codec.fingerprint(ds._plan)
        assert copy.cardinality == ds._plan.cardinality
    squares = Dataset.range(3).map(lambda n: n * n)
    copy = Dataset(codec.decode(codec.encode(squares._plan)))
    assert [int(n) for n in copy] == [0, 1, 4]


def test_what_is_no_plan_is_refused() -> None:
    good = codec.encode(Dataset.range(3)._plan)
    with pytest.raises(
        InvalidArgumentError, match="not a plan of version 1, it begins with b'hell"
    ):
        codec.decode(b"hello")
    with pytest.raises(DataLossError, match="decode: the plan cannot be read"):
        codec.decode(good[:-9])
    with pytest.raises(InvalidArgumentError, match="this is not a plan but a int"):
        codec.decode(good.split(b"\n")[0] + b"\n" + pickle.dumps(5))


@pytest.mark.parametrize(
    "make",
    [
        lambda **seed: Dataset.range(9).shuffle(3, **seed),
        lambda **seed: Dataset.random(**seed),
        lambda **seed: Dataset.range(9).map(lambda x, random: x, random=True, **seed),
        lambda **seed: Dataset.sample_from_datasets([Dataset.range(9)] * 2, **seed),
        lambda **seed: Dataset.list_files(__file__, **seed),
    ],
)
def test_fingerprints_see_a_seed_only_where_it_was_given(make: Any) -> None:
    first, again = make(), make()
    assert first.fingerprint() == again.fingerprint() != make(seed=1).fingerprint()
    assert make(seed=1).fingerprint() != make(seed=2).fingerprint()
    assert codec.fingerprint(with_seeds(first._plan, [1])) == first.fingerprint()


@pytest.mark.parametrize(
    ("before", "name", "now"),
    [
        ("penstock.tf.elementwise", "matmul", "penstock.tf.math"),
        ("penstock.tf.elementwise", "_xlogy", "penstock.tf.math"),
        ("penstock.tf.csv_records", "decode_csv", "penstock.tf.io"),
        ("penstock.tf.tensor_messages", "parse_tensor", "penstock.tf.io"),
    ],
)
def test_functions_that_have_moved_since_version_0_2_are_found(
    monkeypatch: pytest.MonkeyPatch, before: str, name: str, now: str
) -> None:
    function = FunctionType((lambda value: value).__code__, {}, name)
    function.__module__, function.__qualname__ = before, name
    former = ModuleType(before)
    setattr(former, name, function)
    plan = Map(Range(0, 3, 1, int64), Function(function))
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, before, former)
        encoded = codec.encode(plan)
        named = encode_by_reference(plan)
    found = getattr(importlib.import_module(now), name)
    for decoded in (codec.decode(encoded), decode_by_reference(named, ["penstock.tf"])):
        assert isinstance(decoded, Map)
        assert decoded.function.call is found
