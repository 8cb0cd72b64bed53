"""Datasets of serialized examples: `parse_example_dataset`, `make_batched_features_dataset`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from penstock.data import arguments as check
from penstock.data.dataset import Dataset
from penstock.data.experimental.transformations import Transformation
from penstock.data.file_datasets import TFRecordDataset
from penstock.element import nest
from penstock.element.dtypes import string
from penstock.element.spec import TensorSpec
from penstock.engine.formats.examples.features import Feature
from penstock.engine.formats.examples.parsing import parse_example
from penstock.errors import InvalidArgumentError, InvalidTypeError


def parse_example_dataset(
    features: Mapping[str, Feature],
    num_parallel_calls: int = 1,
    deterministic: bool | None = None,
) -> Transformation:
    """Parses batches of serialized examples; for `Dataset.apply`.

    Args:
        features: As for `penstock.io.parse_example`.
        num_parallel_calls: How many batches to parse at once.
        deterministic: Whether the batches keep their order.

    >>> from penstock.io import FixedLenFeature, serialize_example
    >>> records = Dataset.from_tensor_slices([serialize_example({"x": i}) for i in range(3)])
    >>> parse = parse_example_dataset({"x": FixedLenFeature([], "int64")})
    >>> print(*records.batch(2).apply(parse))
    {'x': array([0, 1])} {'x': array([2])}
    """
    where = "parse_example_dataset"
    if not isinstance(features, Mapping):
        raise InvalidArgumentError(
            f"{where}: features must be a dict from names to features, got {features!r}"
        )
    parse_example([], features)  # Checks the features.
    calls = check.parallelism(where, "num_parallel_calls", num_parallel_calls)
    if calls is None:
        raise InvalidArgumentError(f"{where}: num_parallel_calls must be an integer, got None")

    def apply(dataset: Dataset) -> Dataset:
        check.plan_of(where, "dataset", dataset)
        spec = dataset.element_spec
        if not (isinstance(spec, TensorSpec) and spec.dtype == string and spec.shape.rank == 1):
            raise InvalidTypeError(
                f"{where}: elements must be vectors of strings, got {spec}; batch the records first"
            )
        (rows,) = spec.shape.dims or (None,)
        return dataset.map(
            functools.partial(parse_batch, features),
            num_parallel_calls=None if calls == 1 else calls,
            deterministic=deterministic,
            output_signature={name: one.spec(rows) for name, one in sorted(features.items())},
        )

    return apply


def parse_batch(features: Mapping[str, Feature], records: Any) -> dict[str, Any]:
    """The features of a batch, in the order of their names."""
    found = parse_example(records, features)
    return {name: found[name] for name in sorted(features)}


def make_batched_features_dataset(
    file_pattern: Any,
    batch_size: int,
    features: Mapping[str, Feature],
    reader: Callable[..., Dataset] | None = None,
    label_key: str | None = None,
    reader_args: Sequence[Any] | None = None,
    num_epochs: int | None = None,
    shuffle: bool = True,
    shuffle_buffer_size: int = 10000,
    shuffle_seed: int | None = None,
    prefetch_buffer_size: int | None = None,
    reader_num_threads: int | None = None,
    parser_num_threads: int | None = None,
    sloppy_ordering: bool = False,
    drop_final_batch: bool = False,
) -> Dataset:
    """Batches of parsed examples, from files of serialized ones.

    Args:
        file_pattern: A pattern, or a list of patterns or names.
        batch_size: How many examples make a batch.
        features: As for `penstock.io.parse_example`.
        reader: Makes the dataset of the records of a file; `TFRecordDataset` if None.
        label_key: The feature that is the label: elements are then pairs of the other features and
            the label.
        reader_args: More arguments for `reader`.
        num_epochs: How often the examples are repeated; without end if None.
        shuffle: Whether files and examples come in random order.
        shuffle_buffer_size: From how many examples the next is drawn.
        shuffle_seed: The seed of that order.
        prefetch_buffer_size: How many batches to prepare ahead; AUTOTUNE if None.
        reader_num_threads: How many files to read at once, in turn; 1 if None.
        parser_num_threads: How many batches to parse at once; 2 if None.
        sloppy_ordering: Whether the order may depend on which file is faster.
        drop_final_batch: Whether a smaller last batch is left out.

    >>> import os, tempfile
    >>> from penstock.io import FixedLenFeature, TFRecordWriter, serialize_example
    >>> path = os.path.join(tempfile.mkdtemp(), "x.tfrecord")
    >>> with TFRecordWriter(path) as writer:
    ...     for number in range(3):
    ...         writer.write(serialize_example({"x": number}))
    >>> features = {"x": FixedLenFeature([], "int64")}
    >>> print(*make_batched_features_dataset(path, 2, features, num_epochs=1, shuffle=False))
    {'x': array([0, 1])} {'x': array([2])}
    """
    where = "make_batched_features_dataset"
    if reader is not None and not callable(reader):
        raise InvalidTypeError(
            f"{where}: reader must be a function of a file name that returns a dataset, "
            f"got {check.describe(reader)}"
        )
    parse = parse_example_dataset(features, 2 if parser_num_threads is None else parser_num_threads)
    if label_key and label_key not in features:
        raise InvalidArgumentError(
            f"{where}: label_key must be one of the features {sorted(features)}, got {label_key!r}"
        )
    files = Dataset.list_files(file_pattern, shuffle=shuffle, seed=shuffle_seed)
    one_file = functools.partial(open_file, reader or TFRecordDataset, tuple(reader_args or ()))
    ds = take_turns(files, one_file, reader_num_threads, sloppy_ordering)
    if nest.flatten(ds.element_spec)[1] == nest.flatten((0, 0))[1]:
        ds = ds.map(_second)
    if shuffle:
        ds = ds.shuffle(shuffle_buffer_size, shuffle_seed)
    ds = ds if num_epochs == 1 else ds.repeat(num_epochs)
    ds = ds.batch(batch_size, drop_remainder=drop_final_batch or num_epochs is None).apply(parse)
    if label_key:
        ds = ds.map(functools.partial(split_label, label_key))
    return ds.prefetch(prefetch_buffer_size)


def open_file(reader: Callable[..., Any], arguments: tuple[Any, ...], path: Any) -> Any:
    """The dataset of the records of one file."""
    return reader(path, *arguments)


def _second(key: Any, value: Any) -> Any:
    return value


def split_label(label_key: str, features: dict[str, Any]) -> tuple[dict[str, Any], Any]:
    """A pair of the other features and of the label."""
    rest = dict(features)
    label = rest.pop(label_key)
    return rest, label


def take_turns(files: Dataset, one_file: Any, parallel: int | None, sloppy: bool) -> Dataset:
    """The records of files: one file after the other, or several in turn."""
    if parallel is None or parallel == 1:
        return files.flat_map(one_file)
    return files.interleave(
        one_file,
        cycle_length=parallel,
        num_parallel_calls=parallel,
        deterministic=not sloppy,
    )
