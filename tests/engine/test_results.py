"""What functions return: a list is one array, of one shape, or an error says what to do."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from penstock import TensorSpec, float64
from penstock.data import Dataset
from penstock.element.chunk import Chunk
from penstock.errors import InvalidArgumentError

THREE = Dataset.range(1, 4)


def pair(x: Any) -> Any:
    return [x, x + 1]


WAYS: dict[str, Callable[[Any], Any]] = {
    "map": lambda f: THREE.map(f),
    "parallel map": lambda f: THREE.map(f, num_parallel_calls=2),
    "random map": lambda f: THREE.map(lambda x, random: f(x), random=True),
    "scan": lambda f: THREE.scan(np.int64(0), lambda state, x: (state, f(x))),
    "by index": lambda f: [THREE.map(f)[i] for i in range(3)],
    "in a tuple": lambda f: THREE.map(lambda x: (x, f(x))).map(lambda x, made: made),
}


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_a_list_is_an_array(way: Any) -> None:
    assert [x.tolist() for x in way(pair)] == [[1, 2], [2, 3], [3, 4]]
    assert [x.dtype for x in way(pair)] == [np.int64] * 3


def test_the_spec_says_so() -> None:
    assert THREE.map(pair).element_spec.shape == (2,)


@pytest.mark.parametrize("way", [WAYS[name] for name in ("map", "parallel map", "scan")])
@pytest.mark.parametrize("wrap", [lambda made: made, lambda made: {"a": (made, 1)}])
def test_a_number_times_a_list_does_not_go_unnoticed(way: Any, wrap: Any) -> None:
    iterator = iter(way(lambda x: wrap(x * [1, 2])))
    next(iterator)
    with pytest.raises(
        InvalidArgumentError,
        match=r"list of shape \[\(2,\)\] for element 0 but \[\(4,\)\] for element 1; .* multiply a",
    ):
        next(iterator)


def test_arrays_may_differ_in_shape() -> None:
    assert [len(x) for x in THREE.map(lambda x: np.zeros(x))] == [1, 2, 3]


@pytest.mark.parametrize(
    ("made", "problem"),
    [
        (lambda x: [x, 37.0], r"mixes float and int64, and a list is one array; .* use a tuple"),
        (lambda x: [x, np.float32(1)], r"mixes float32 and int64, .* use a tuple"),
        (lambda x: [x > 1, x], r"mixes bool.* and int64, .* use a tuple"),
        (lambda x: [np.zeros(2), np.zeros(3)], r"differ in length; use penstock.Ragged.* a tuple"),
        (lambda x: [[1, 2], [3]], r"differ in length; use penstock.Ragged.* a tuple"),
        (lambda x: [b"a", x], r"mixes strings and numbers; use a tuple"),
        (lambda x: [{}, {}], r"cannot be made into an array; make a dict of lists, .* use a tuple"),
    ],
)
def test_lists_that_are_no_arrays(made: Any, problem: str) -> None:
    with pytest.raises(InvalidArgumentError, match=f"Dataset.map: .* for element 0: .*{problem}"):
        next(iter(THREE.map(made)))


def test_a_list_is_no_set_of_columns() -> None:
    with pytest.raises(InvalidArgumentError, match="returned a list; with vectorized=True"):
        next(iter(THREE.map(lambda x: [x, x], vectorized=True)))


def test_pythons_ints_may_stand_beside_floats() -> None:
    assert next(iter(THREE.map(lambda x: [x * 0.5, 0]))).tolist() == [0.5, 0]
    assert next(iter(THREE.map(lambda x: [1, 2.5]))).tolist() == [1, 2.5]


def test_a_scan_of_a_large_chunk_unpacks_a_little_of_it_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Unpacking all of it could take the whole budget, for one call of the function."""
    sizes: list[int] = []
    elements = Chunk.elements

    def note(chunk: Chunk) -> list[Any]:
        sizes.append(len(chunk))
        return elements(chunk)

    monkeypatch.setattr(Chunk, "elements", note)
    count = 50_000
    scanned = Dataset.range(count).scan(np.int64(0), lambda total, x: (total + x, x))
    assert int(next(iter(scanned.batch(count)))[-1]) == count - 1
    assert max(sizes) <= 1024


def test_the_state_of_a_scan_may_be_a_list() -> None:
    fibonacci = Dataset.range(6).scan([0, 1], lambda a, _: ([a[1], a[0] + a[1]], a[1]))
    assert [int(x) for x in fibonacci] == [1, 1, 2, 3, 5, 8]
    begin = (np.int64(0), np.int64(0))
    assert THREE.reduce(begin, lambda a, x: [a[0] + 1, a[1] + x]) == (3, 6)


SIGNED = TensorSpec([3], float64)


@pytest.mark.parametrize("calls", [None, 2])
def test_a_signature_is_kept(calls: int | None) -> None:
    """Batches and cardinalities are computed from the signature, so it must be true."""
    ds = Dataset.range(5).map(
        lambda x: np.zeros(4 if x == 2 else 3), calls, output_signature=SIGNED
    )
    iterator = iter(ds)
    assert [len(next(iterator)) for _ in range(2)] == [3, 3]
    with pytest.raises(InvalidArgumentError, match=r"for element 2, .* fit the output_signature"):
        next(iterator)
    assert [len(x) for x in iterator] == [3, 3]


@pytest.mark.parametrize(
    "read",
    [
        lambda: THREE.map(lambda x: np.zeros(4), output_signature=SIGNED)[0],
        lambda: THREE.map(
            lambda x: np.zeros((len(x), 4)), vectorized=True, output_signature=SIGNED
        ).get_single_element(),
        lambda: next(iter(THREE.map(lambda x: [1, 2, 3], output_signature=SIGNED))),
    ],
)
def test_a_signature_is_kept_wherever_a_function_is_called(read: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="fit the"):
        read()


def test_keys_in_another_order_are_no_other_structure() -> None:
    """This holds even if another element of the same chunk has another structure."""
    made: list[Any] = [{"a": x, "b": x} for x in range(40)] + [{"b": 40, "a": 40}, {"c": 41}]
    for calls in (None, 2):
        dataset = Dataset.range(42).map(lambda x: made[x], num_parallel_calls=calls)
        assert list(dataset.ignore_errors()) == made[:41]
        with pytest.raises(
            InvalidArgumentError, match=r"'b': int32} for element 0 but {'c': int32"
        ):
            list(dataset)
