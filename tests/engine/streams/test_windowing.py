"""Groups: many elements are pulled at once, and each window's size is computed once."""

from collections.abc import Iterator

import numpy as np
import pytest

from penstock.data.dataset import Dataset
from penstock.element.chunk import Chunk
from penstock.element.spec import TensorSpec
from penstock.engine import inlets
from penstock.engine.streams.sources import AccessStream
from tests.engine.driving import drain_stream, model, open_stream


@pytest.mark.parametrize("limit", [1, 3, 1000])
def test_groups_pull_many_elements_at_once(limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inlets, "BUDGET", 600.0)
    plan = (
        Dataset.range(400)
        .group_by_window(lambda x: x % 7, lambda key, window: window.batch(10), window_size=20)
        ._plan
    )
    expected = model(plan)
    pulled: list[int] = []
    pull = AccessStream.pull

    def note(stream: AccessStream, limit: int) -> Chunk:
        chunk = pull(stream, limit)
        pulled.append(len(chunk))
        return chunk

    monkeypatch.setattr(AccessStream, "pull", note)
    assert drain_stream(open_stream(plan), limit) == expected
    assert max(pulled) > 64


def test_the_size_of_a_window_is_found_once_for_each_window() -> None:
    asked: list[int] = []

    def find_size(key: np.int64) -> np.int64:
        asked.append(int(key))
        return key + 2

    dataset = Dataset.range(24).group_by_window(
        lambda x: x % 2, lambda key, window: window.batch(10), window_size_func=find_size
    )
    spec = dataset.element_spec
    asked.clear()
    found = [batch.tolist() for batch in dataset]
    assert dataset.element_spec == spec
    assert sorted(map(len, found)) == [2] * 6 + [3] * 4
    assert sorted(asked) == [0] * 6 + [1] * 4


def test_a_generator_is_asked_only_for_the_elements_of_the_window() -> None:
    made: list[int] = []

    def count() -> Iterator[int]:
        for number in range(100):
            made.append(number)
            yield number

    numbers = Dataset.from_generator(count, output_signature=TensorSpec((), np.int64))
    windows = numbers.group_by_window(lambda x: 0, lambda key, window: window.batch(4), 4)
    assert list(next(iter(windows))) == [0, 1, 2, 3] == made
