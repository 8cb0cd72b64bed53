import itertools
import pickle
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock.random
from penstock.errors import InvalidArgumentError, InvalidTypeError
from penstock.plan import seeds

INT64 = st.integers(-(2**63), 2**63 - 1)


@pytest.fixture(autouse=True)
def _no_global_seed():
    seeds.set_seed(None)
    yield
    seeds.set_seed(None)


def draws(count: int = 5) -> list[int]:
    return [seeds.draw() for _ in range(count)]


@given(st.lists(INT64, min_size=1, max_size=4))
def test_derive_is_a_function_into_64_bits(parts):
    assert 0 <= seeds.derive(*parts) < 2**64
    assert seeds.derive(*parts) == seeds.derive(*map(np.int64, parts))


@given(INT64, INT64, INT64)
def test_derive_folds(a, b, c):
    assert seeds.derive(a, b, c) == seeds.derive(seeds.derive(a, b), c)


def test_derive_is_pinned():
    """States saved by one version are read by the next: these numbers must never change."""
    assert seeds.derive(0) == PINNED[0]
    assert seeds.derive(0, 0) == PINNED[1]
    assert seeds.derive(1, 2, 3) == PINNED[2]
    assert seeds.generator(1, 2, 3).integers(2**63) == PINNED[3]


PINNED = (2902805962516761537, 4723828388691666090, 17252879389656903260, 119613805334827603)


def test_derive_separates_small_and_swapped_parts():
    keys = [k for n in (1, 2, 3) for k in itertools.product(range(-6, 6), repeat=n)]
    assert len({seeds.derive(*key) for key in keys}) == len(keys)


@pytest.mark.parametrize("position", [0, 1, 2])
def test_one_bit_of_a_part_flips_half_of_the_result(position):
    flips = []
    for bit in range(64):
        parts = [11, 22, 33]
        before = seeds.derive(*parts)
        parts[position] ^= 1 << bit
        flips.append((before ^ seeds.derive(*parts)).bit_count())
    assert 29 < sum(flips) / 64 < 35
    assert min(flips) > 12


@given(INT64, st.lists(INT64, max_size=5))
def test_derive_array_is_derive_of_each(base, values):
    array = seeds.derive_array(base, np.array(values, np.int64))
    assert array.dtype == np.uint64
    assert array.tolist() == [seeds.derive(base, value) for value in values]


def test_derive_array_leaves_its_argument_and_its_shape():
    values = np.arange(6, dtype=np.uint64).reshape(2, 3)
    assert seeds.derive_array(1, values).shape == (2, 3)
    assert values.ravel().tolist() == list(range(6))


def test_derive_array_is_uniform():
    drawn = seeds.derive_array(5, np.arange(64_000)) % np.uint64(64)
    counts = np.bincount(drawn.astype(np.int64), minlength=64)
    assert abs(counts - 1000).max() < 150


def test_generators_follow_their_key():
    first, again, other = seeds.generator(1, 2), seeds.generator(1, 2), seeds.generator(1, 3)
    expected = first.integers(2**62, size=8).tolist()
    assert again.integers(2**62, size=8).tolist() == expected
    assert other.integers(2**62, size=8).tolist() != expected


def test_generators_of_neighbours_are_independent():
    samples = np.array([seeds.generator(9, i).standard_normal(16) for i in range(500)])
    correlations = np.corrcoef(samples.T)[~np.eye(16, dtype=bool)]
    assert abs(samples.mean()) < 0.05
    assert abs(correlations).max() < 0.25


def test_generators_travel():
    generator = seeds.generator(3)
    generator.random(3)
    copied = pickle.loads(pickle.dumps(generator))
    assert copied.random(4).tolist() == generator.random(4).tolist()


def test_without_a_seed_draws_are_new_and_have_63_bits():
    drawn = draws(100)
    assert len(set(drawn)) == 100
    assert all(0 <= seed < 2**63 for seed in drawn)
    assert max(drawn) > 2**58


def test_a_global_seed_repeats_its_draws():
    penstock.random.set_seed(4)
    first = draws()
    assert len(set(first)) == 5
    penstock.random.set_seed(np.int64(4))
    assert draws() == first
    penstock.random.set_seed(5)
    assert draws() != first
    penstock.random.set_seed(None)
    assert draws() != draws()


def test_a_scope_repeats_its_draws_for_any_seed_outside():
    with seeds.seed_scope(7):
        first = draws()
    seeds.set_seed(1)
    outside = draws(1)
    with seeds.seed_scope(7):
        assert draws() == first
    with seeds.seed_scope(8):
        assert draws() != first
    after = draws(1)
    seeds.set_seed(1)
    assert draws(2) == outside + after


def test_scopes_nest():
    with seeds.seed_scope(7):
        whole = draws(4)
    with seeds.seed_scope(7):
        begin = draws(2)
        with seeds.seed_scope(7):
            assert draws(4) == whole
        assert begin + draws(2) == whole


def test_a_scope_ends_with_an_exception():
    with pytest.raises(KeyError, match="x"), seeds.seed_scope(7):
        raise KeyError("x")
    assert draws() != draws()


def test_a_scope_is_that_of_its_thread():
    with ThreadPoolExecutor(1) as pool, seeds.seed_scope(7):
        assert pool.submit(draws).result() != pool.submit(draws).result()
        first = draws(1)
    with seeds.seed_scope(7):
        assert draws(1) == first


def test_threads_never_draw_the_same_seed():
    seeds.set_seed(1)
    with ThreadPoolExecutor(4) as pool:
        parts = list(pool.map(lambda _: draws(500), range(8)))
    drawn = set().union(*parts)
    seeds.set_seed(1)
    assert drawn == set(draws(4000))


@pytest.mark.parametrize(
    ("seed", "shown"), [("a", r"'a' \(str\)"), (1.0, r"1.0 \(float\)"), (True, r"True \(bool\)")]
)
def test_a_seed_of_the_wrong_type_is_refused(seed, shown):
    with pytest.raises(
        InvalidTypeError, match=rf"^random\.set_seed: seed must be an int or None, got {shown}$"
    ):
        seeds.set_seed(seed)


@pytest.mark.parametrize("seed", [2**64, -(2**63) - 1])
def test_a_seed_that_is_too_large_is_refused(seed):
    with pytest.raises(InvalidArgumentError, match=f"seed must fit into 64 bits, got {seed}"):
        seeds.set_seed(seed)
