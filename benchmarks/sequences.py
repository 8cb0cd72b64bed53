"""Sequences to rows: packing and mixing, beside Grain.

`scripts/bench formats first_fit best_fit concat_split mix mix_streams` measures them alone, with a
Python that has penstock and grain.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import lru_cache, partial
from typing import Any

import numpy as np

LENGTH = 2048
"""The tokens of a packed row."""

ROWS = 8
"""The packed rows of a batch."""

OPEN = 16
WEIGHTS = {"web": 0.7, "books": 0.2, "code": 0.1}
MIXED = 1024


@lru_cache(maxsize=1)
def _load(path: str, *names: str) -> tuple[Any, ...]:
    """Reads arrays once: what is measured begins behind them."""
    with np.load(path) as found:
        return tuple(found[name] for name in names)


def write_documents(path: str, tokens: int) -> None:
    """Documents of 386 tokens on average, none longer than a row."""
    numbers = np.random.default_rng(0)
    lengths = np.minimum(numbers.lognormal(5.5, 1.0, 8 + tokens // 16).astype(int) + 1, LENGTH)
    splits = np.minimum(np.concatenate([[0], np.cumsum(lengths)]), tokens)
    splits = splits[: int(np.searchsorted(splits, tokens)) + 1]
    np.savez(path, tokens=numbers.integers(1, 30_000, tokens, np.int32), splits=splits)


def penstock_pack(strategy: str, path: str) -> Iterator[int]:
    """Yields the number of tokens in each batch of rows."""
    from penstock import Ragged
    from penstock.data import Dataset

    tokens, splits = _load(path, "tokens", "splits")
    documents = Ragged(tokens, splits)
    packed = Dataset.from_tensor_slices({"tokens": documents}).pack(
        LENGTH, strategy, open_rows=OPEN
    )
    for batch in packed.batch(ROWS):
        yield int(np.count_nonzero(batch["segment_ids"]))


def grain_pack(strategy: str, path: str) -> Iterator[int]:
    import grain

    tokens, splits = _load(path, "tokens", "splits")
    documents = [{"tokens": part} for part in np.split(tokens, splits[1:-1])]
    given = _grain_source(documents).to_iter_dataset(_read_options())
    if strategy == "concat_split":
        packed = grain.experimental.ConcatThenSplitIterDataset(
            given, length_struct={"tokens": LENGTH}
        )
    else:
        kinds = {"first_fit": "FirstFitPackIterDataset", "best_fit": "BestFitPackIterDataset"}
        packed = getattr(grain.experimental, kinds[strategy])(
            given, length_struct={"tokens": LENGTH}, num_packing_bins=OPEN, shuffle_bins=False
        )
    for batch in packed.batch(ROWS, drop_remainder=False):
        yield int(np.count_nonzero(batch["tokens_segment_ids"]))


def write_rows(path: str, rows: int) -> None:
    np.savez(path, rows=np.arange(rows * 16, dtype=np.int32).reshape(rows, 16))


def penstock_mix(streams: bool, path: str) -> Iterator[int]:
    """Yields the number of rows in each batch."""
    from penstock.data import Dataset

    (rows,) = _load(path, "rows")
    source = Dataset.from_tensor_slices(rows)
    source = source.unbatch().batch(16) if streams else source
    mixed = Dataset.mix({name: (source, weight) for name, weight in WEIGHTS.items()}, "repeat")
    for batch in mixed.take(len(rows)).batch(MIXED):
        yield len(batch)


def grain_mix(streams: bool, path: str) -> Iterator[int]:
    import grain

    (rows,) = _load(path, "rows")
    parts: list[Any] = [_grain_source(rows).repeat() for _ in WEIGHTS]
    if streams:
        streamed = [part.to_iter_dataset(_read_options()) for part in parts]
        mixed = grain.IterDataset.mix(streamed, list(WEIGHTS.values()))
    else:
        proportions = list(WEIGHTS.values())
        mixed = grain.MapDataset.mix(parts, proportions).to_iter_dataset(_read_options())
    batches = mixed.batch(MIXED, drop_remainder=False)
    full, rest = divmod(len(rows), MIXED)
    for batch in itertools.islice(batches, full):
        yield len(batch)
    yield rest


def _grain_source(rows: Any) -> Any:
    import grain

    return grain.MapDataset.source(rows)


def _read_options() -> Any:
    import grain

    return grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)


PACKING = {
    strategy: {
        "penstock": partial(penstock_pack, strategy),
        "grain": partial(grain_pack, strategy),
    }
    for strategy in ("first_fit", "best_fit", "concat_split")
}
MIXING = {
    name: {"penstock": partial(penstock_mix, streams), "grain": partial(grain_mix, streams)}
    for name, streams in (("mix", False), ("mix_streams", True))
}
