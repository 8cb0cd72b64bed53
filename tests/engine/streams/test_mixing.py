"""`mix`: exact proportions, weights that change at a checkpoint, ends, and buffered elements."""

import itertools
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.data import Dataset
from penstock.data.experimental import service
from penstock.errors import InvalidArgumentError, InvalidTypeError, NotADatasetError
from tests.effort import examples
from tests.engine.driving import drain_stream, model, open_stream, reload_state, saves
from tests.engine.example_plans import filter_plan, numbers

ENDS = st.sampled_from(["stop", "repeat", "drop"])


@st.composite
def mixtures(draw):
    count = draw(st.integers(1, 4))
    weights = draw(st.lists(st.sampled_from([0, 0.1, 0.25, 1, 3]), min_size=count, max_size=count))
    weights[0] = weights[0] or 1
    parts = [numbers(100 * i + draw(st.integers(0, 9)), 100 * i) for i in range(count)]
    parts = [filter_plan(part) if draw(st.booleans()) else part for part in parts]
    named = {
        str(i): (Dataset(part), w) for i, (part, w) in enumerate(zip(parts, weights, strict=True))
    }
    mixed = Dataset.mix(named, on_end={name: draw(ENDS) for name in named})
    return mixed.take(40)._plan


@examples(50)
@given(plan=mixtures(), limit=st.integers(1, 9), data=st.data())
def test_any_mixture_is_that_of_the_list_model_and_resumes_exactly(plan, limit, data):
    expected = model(plan)
    assert drain_stream(open_stream(plan), limit) == expected
    count, state = data.draw(st.sampled_from(list(saves(plan, limit))))
    assert drain_stream(open_stream(plan, reload_state(state)), 7) == expected[count:]


def sources(web: float, books: float, code: float = 0.0) -> dict:
    return {
        "web": (Dataset.range(100), web),
        "books": (Dataset.range(1000, 1003).shuffle(3, seed=1), books),
        "code": (Dataset.range(2000, 2100), code),
    }


def drawn_from(elements) -> list[int]:
    found = Counter(int(element) // 1000 for element in elements)
    return [found[number] for number in range(3)]


def test_weights_may_change_at_a_checkpoint_and_count_from_there():
    old, new = sources(0.75, 0.25), sources(0.2, 0, 0.8)
    expected = list(map(int, Dataset.mix(old, on_end="repeat").take(60)))
    for taken in (0, 1, 10, 25):
        iterator = iter(Dataset.mix(old, on_end="repeat").batch(1).unbatch())
        found = [int(x) for x in itertools.islice(iterator, taken)]
        changed = iter(Dataset.mix(new, on_end="repeat").batch(1).unbatch())
        changed.load_state_dict(iterator.state_dict())
        # What was drawn when the state was saved, for a batch or a chunk, comes first.
        ahead = sum(drawn.elements for drawn in iterator.profile().drawn.values())
        found += [int(x) for x in itertools.islice(changed, ahead - taken)]
        assert found == expected[:ahead]
        after = [int(x) for x in itertools.islice(changed, 50)]
        for length in range(1, 51):
            counts = drawn_from(after[:length])
            assert all(
                abs(count - share * length) < 1
                for count, share in zip(counts, (0.2, 0, 0.8), strict=True)
            )
        web = [x for x in found + after if x < 1000]
        assert web == list(range(len(web)))
        assert [x for x in after if x >= 2000] == list(range(2000, 2040))
        total = [drawn.elements for drawn in changed.profile().drawn.values()]
        assert sum(total) >= ahead + 50
        assert total[1] == drawn_from(expected[:ahead])[1]


def test_a_state_before_the_change_can_be_saved_again():
    old, new = sources(3, 1), sources(1, 3)
    iterator = iter(Dataset.mix(old, on_end="repeat").batch(10))
    next(iterator)
    state = iterator.state_dict()
    once = iter(Dataset.mix(new, on_end="repeat").batch(10))
    once.load_state_dict(state)
    expected = [batch.tolist() for batch in itertools.islice(once, 20)]
    for batch in expected:
        again = iter(Dataset.mix(new, on_end="repeat").batch(10))
        again.load_state_dict(state)
        assert next(again).tolist() == batch
        state = again.state_dict()


FORMS = {
    "bare": lambda mixed: mixed.batch(1),
    "batched": lambda mixed: mixed.batch(5),
    "mapped": lambda mixed: mixed.map(lambda x: x, num_parallel_calls=2).batch(3),
    "prefetched": lambda mixed: mixed.batch(4).prefetch(2),
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
@given(data=st.data())
@examples(30)
def test_weights_may_change_at_every_checkpoint(form, data):
    weights = st.tuples(*[st.integers(1, 5)] * 2)
    found, state = [], None
    for changed in data.draw(st.lists(weights, min_size=2, max_size=5)):
        parts = {
            str(number): (Dataset.range(1000 * number, 1000 * number + 900), weight)
            for number, weight in enumerate(changed)
        }
        iterator = iter(form(Dataset.mix(parts)))
        if state is not None:
            iterator.load_state_dict(reload_state(state))
        taken = data.draw(st.integers(0, 12))
        found += [int(x) for batch in itertools.islice(iterator, taken) for x in batch]
        state = iterator.state_dict()
        iterator.close()
    for number in range(2):
        own = [x - 1000 * number for x in found if x // 1000 == number]
        assert own == list(range(len(own)))


def test_a_mix_that_has_stopped_continues_if_the_empty_dataset_has_no_weight():
    iterator = iter(Dataset.mix(sources(1, 1)))
    assert len(list(iterator)) == 7
    other = iter(Dataset.mix(sources(1, 0)))
    other.load_state_dict(iterator.state_dict())
    assert list(map(int, other)) == list(range(4, 100))


def test_the_weights_of_a_mix_that_a_service_computes_stay():
    def serve_mix(web: float) -> Dataset:
        mixed = Dataset.mix(sources(web, 1))
        return mixed.apply(service.distribute("distributed_epoch", "local://1"))

    state = iter(serve_mix(1)).state_dict()
    iter(serve_mix(1)).load_state_dict(state)
    with pytest.raises(InvalidArgumentError, match="the state was saved by another pipeline"):
        iter(serve_mix(2)).load_state_dict(state)


def test_a_state_of_a_mix_does_not_move_to_a_service():
    mixed = Dataset.mix(sources(1, 1))
    served = mixed.apply(service.distribute("distributed_epoch", "local://1"))
    with pytest.raises(InvalidArgumentError, match="does not move to or from a service, because"):
        iter(served).load_state_dict(iter(mixed).state_dict())


def test_a_state_with_the_same_proportions_keeps_counting():
    iterator = iter(Dataset.mix(sources(3, 1)))
    expected = list(map(int, Dataset.mix(sources(3, 1))))
    for _ in range(3):
        next(iterator)
    other = iter(Dataset.mix(sources(0.75, 0.25)))
    other.load_state_dict(iterator.state_dict())
    assert list(map(int, other)) == expected[3:]


def test_a_repeated_dataset_is_shuffled_anew_in_each_epoch_and_epochs_are_counted():
    iterator = iter(Dataset.mix(sources(1, 1), on_end="repeat"))
    books = [int(x) for x in itertools.islice(iterator, 80) if x >= 1000]
    epochs = [books[i : i + 3] for i in range(0, 36, 3)]
    assert all(sorted(epoch) == [1000, 1001, 1002] for epoch in epochs)
    assert len(set(map(tuple, epochs))) > 1
    report = iterator.profile()
    # The mix may be ahead of what the caller got.
    assert report.drawn["books"].elements >= 40
    assert report.drawn["books"].epochs == (report.drawn["books"].elements - 1) // 3
    assert report.drawn["code"].elements == 0
    assert "mix: 0 elements of 'code', epochs: 0" in str(report)


def test_the_report_continues_after_a_state_and_at_the_end():
    made = Dataset.mix(sources(1, 1), on_end="drop")
    iterator = iter(made)
    list(itertools.islice(iterator, 50))
    other = iter(made)
    other.load_state_dict(iterator.state_dict())
    assert len(list(other)) == 53
    found = {name: (d.elements, d.epochs) for name, d in other.profile().drawn.items()}
    assert found == {"web": (100, 1), "books": (3, 1), "code": (0, 0)}


def test_a_mixture_of_mixtures_reports_all_names():
    inner = Dataset.mix({"a": (Dataset.range(5), 1), "b": (Dataset.range(5), 1)})
    iterator = iter(Dataset.mix({"inner": (inner, 1), "c": (Dataset.range(50), 1)}))
    assert len(list(iterator)) == 20
    report = {name: drawn.elements for name, drawn in iterator.profile().drawn.items()}
    assert report == {"inner": 10, "c": 10, "a": 5, "b": 5}


def test_only_a_mixture_reports():
    iterator = iter(Dataset.range(3))
    list(iterator)
    assert iterator.profile().drawn == {}


def test_each_dataset_may_end_in_its_own_way():
    ends = {"web": "stop", "books": "repeat", "code": "drop"}
    parts = sources(0.5, 0.25, 0.25) | {"code": (Dataset.range(2000, 2002), 0.25)}
    found = list(Dataset.mix(parts, on_end=ends))
    web, books, code = drawn_from(found)
    assert (web, code) == (100, 2)
    assert abs(books - 49) <= 1


def test_the_length_is_known_where_it_is_endless():
    def length(ends: object, web: float = 1.0) -> int:
        endless = {"counter": (Dataset.counter(), 1)}
        return int(Dataset.mix(sources(web, 0) | endless, on_end=ends).cardinality())

    assert [length("repeat"), length("drop"), length("stop"), length("stop", 0)] == [-1, -1, -2, -1]
    empty = Dataset.mix({"empty": (Dataset.range(0), 1)}, on_end="repeat")
    assert empty.cardinality() == -2


def slow(x):
    return np.int64(x)


def test_workers_give_the_local_mixture_from_some_states():
    named = {name: (ds.map(slow), weight) for name, (ds, weight) in sources(3, 1, 2).items()}
    local = Dataset.mix(named, on_end={"web": "stop", "books": "repeat", "code": "drop"}).take(60)
    expected = list(map(int, local))
    remote = local.apply(service.distribute("distributed_epoch", "local://2"))
    iterator = iter(remote)
    for count in range(60):
        if count % 20 == 10:
            again = iter(remote)
            again.load_state_dict(iterator.state_dict())
            assert list(map(int, again)) == expected[count:]
            again.close()
        assert int(next(iterator)) == expected[count]
    iterator.close()


ONE = Dataset.range(3)


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        (([(ONE, 1)],), InvalidTypeError, r"needs a dict {name: \(dataset, weight\)}"),
        (({},), InvalidTypeError, "needs a dict .* with at least one dataset, got {}"),
        (({"a": ONE},), InvalidTypeError, r"every item must be name: \(dataset, weight\)"),
        (({1: (ONE, 1)},), InvalidTypeError, r"every item must be name: \(dataset, weight\)"),
        (({"a": (3, 1)},), NotADatasetError, "the dataset of 'a' must be a Dataset"),
        (({"a": (ONE, "x")},), InvalidTypeError, "the weight of 'a' must be a number, got 'x'"),
        (({"a": (ONE, True)},), InvalidTypeError, "the weight of 'a' must be a number"),
        (({"a": (ONE, -1)},), InvalidArgumentError, "must be at least 0 and finite, got -1"),
        (({"a": (ONE, float("nan"))},), InvalidArgumentError, "at least 0 and finite, got nan"),
        (({"a": (ONE, 0)},), InvalidArgumentError, "at least one weight must be more than 0"),
        (
            ({"a": (ONE, 1)}, "go on"),
            InvalidArgumentError,
            'on_end must be one of "stop", "repeat"',
        ),
        (({"a": (ONE, 1)}, {"b": "stop"}), InvalidArgumentError, r"must name each of .*\['a'\]"),
        (({"a": (ONE, 1)}, {"a": "end"}), InvalidArgumentError, "on_end of 'a' must be one of"),
        (
            ({"a": (ONE, 1), "b": (Dataset.range(3, output_type=np.float32), 1)},),
            InvalidTypeError,
            "elements must have the same structure and dtypes",
        ),
    ],
)
def test_wrong_arguments_are_refused(arguments, kind, message):
    with pytest.raises(kind, match=f"^Dataset.mix: .*{message}|^Dataset.mix: {message}"):
        Dataset.mix(*arguments)


def test_a_dataset_without_elements_cannot_be_repeated():
    named = {"empty": (Dataset.range(9).filter(lambda x: x > 9), 1), "b": (Dataset.range(2), 1)}
    iterator = iter(Dataset.mix(named, on_end={"empty": "repeat", "b": "stop"}))
    with pytest.raises(InvalidArgumentError, match="'empty' has no elements, so that it cannot"):
        next(iterator)
    assert list(map(int, iterator)) == [0, 1]
