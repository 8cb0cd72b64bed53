"""`Dataset`: an immutable description of elements, with one method per operator.

A dataset wraps a plan. Each method checks its arguments, builds a node and returns a new dataset;
nothing is computed before an iterator is used. Sections follow the families of operators.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import sys
import warnings
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from penstock.data import (
    adapters,
    by_index,
    checkpoints,
    element_specs,
    foreign_datasets,
    inspection,
    padding,
    sampling,
    table_plans,
    tracing,
)
from penstock.data import arguments as check
from penstock.data.arguments import AUTOTUNE
from penstock.data.delivered import Check, DeliveredIterator
from penstock.data.iterator import Iterator, NumpyIterator, PublicNames
from penstock.data.skipping import BadFiles
from penstock.delivery import Delivery
from penstock.element import nest
from penstock.element.chunk import Chunk
from penstock.element.spec import DatasetSpec, TensorShape, TypeSpec
from penstock.element.values import as_value
from penstock.engine import specs
from penstock.engine.access import Access, access
from penstock.engine.caching import read_with_cache
from penstock.engine.context import Context, Environment
from penstock.engine.contract import State, Stream
from penstock.engine.copies import copy_unowned
from penstock.engine.formats import files, image_folders, saved
from penstock.engine.lower import chunks_of
from penstock.engine.streams.elementwise import check_state
from penstock.engine.tracebacks import fold
from penstock.engine.user_calls import Calls
from penstock.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    InvalidTypeError,
    NotAConfigError,
    OpError,
    OutOfRangeError,
    UnimplementedError,
)
from penstock.launch import register_schemes
from penstock.missing_names import explain_arguments, missing_from_dataset
from penstock.plan import codec, nodes, packed, seeds, show
from penstock.plan.block_lengths import block_lengths
from penstock.plan.functions import Function, check_function, wraps_for
from penstock.plan.nodes import INFINITE, UNKNOWN, Data, Node, known_spec
from penstock.plan.options import Options
from penstock.plan.resume import draws_order

SHARD_HINT = -1
"""For `num_shards` of `shard`: a strategy replaces both arguments by its own numbers."""

DEFAULT_CYCLE = 2
"""How many datasets `interleave` opens at once: a constant, for one order on every machine."""

_MOST = np.iinfo(np.int64).max
"""The greatest cardinality that fits into an int64."""

Call = Callable[..., Any]


class _DatasetClass(type):
    """The class of `Dataset` itself: says what to write instead of a constructor that is not there.

    >>> Dataset.from_csv
    Traceback (most recent call last):
    AttributeError: Dataset.from_csv does not exist: use penstock.data.experimental.CsvDataset, ...
    """

    if not TYPE_CHECKING:  # A type checker knows the names, and would take any other one, too.

        def __getattr__(cls, name: str) -> NoReturn:
            raise missing_from_dataset(name, _names_of(cls))


class Dataset(PublicNames, metaclass=_DatasetClass):
    """Elements, and how they are made: lazy, immutable, typed by `element_spec`.

    Methods that TensorFlow's `tf.data.Dataset` has are like there, with its arguments and defaults;
    `name` is accepted everywhere and changes nothing. Functions are Python and get NumPy values; an
    element that is a tuple is handed to them as separate arguments.

    >>> ds = Dataset.range(10).filter(lambda x: x % 3 != 0).map(lambda x: x * x).batch(4)
    >>> print(*ds)
    [ 1  4 16 25] [49 64]
    """

    _present: Callable[[Any], Any] | None = None
    """Converts the NumPy values that strategies hand out; None if they stay NumPy values."""

    def __init__(self, plan: Node) -> None:
        if not isinstance(plan, Node):
            raise InvalidTypeError(
                f"Dataset: needs a plan, got {check.describe(plan)}; "
                "use Dataset.from_tensor_slices, Dataset.range or another source"
            )
        self._plan = plan
        self._iterations = nodes.IterationCounter()

    # Sources

    @staticmethod
    def from_tensors(tensors: Any, name: str | None = None) -> Dataset:
        """One element: `tensors` itself.

        Args:
            tensors: A value, or a structure (tuples, dicts, dataclasses) of them; a list is an
                array.

        >>> print(*Dataset.from_tensors([1, 2, 3]))
        [1 2 3]
        """
        data = check.single("Dataset.from_tensors", tensors)
        if all(leaf is None for leaf in nest.flatten(tensors)[0]):
            raise InvalidArgumentError(
                f"Dataset.from_tensors: needs at least one value, got {tensors!r}"
            )
        return Dataset(nodes.Tensors(data))

    @staticmethod
    def from_tensor_slices(tensors: Any, name: str | None = None) -> Dataset:
        """The rows of arrays: element i is row i of every component.

        Args:
            tensors: An array, or a structure of arrays with as many rows. A list is an array.

        >>> for element in Dataset.from_tensor_slices(([1, 2], ["a", "b"])):
        ...     print(*element)
        1 b'a'
        2 b'b'
        """
        return Dataset(nodes.Slices(check.rows("Dataset.from_tensor_slices", tensors)))

    @staticmethod
    def from_generator(
        generator: Callable[..., Iterable[Any]],
        output_types: Any = None,
        output_shapes: Any = None,
        args: Sequence[Any] | None = None,
        output_signature: Any = None,
        name: str | None = None,
    ) -> Dataset:
        """The values that a Python generator yields; every iteration starts a new generator.

        Args:
            generator: A function that returns something to iterate over.
            output_types: The dtypes of an element, where no `output_signature` is given.
            output_shapes: The shapes for `output_types`; unknown if None.
            args: Arguments for `generator`; they arrive as NumPy values.
            output_signature: The structure of specs that every element fits.

        >>> def count(stop):
        ...     yield from range(stop)
        >>> print(*Dataset.from_generator(count, np.int64, args=(3,)))
        0 1 2
        """
        where = "Dataset.from_generator"
        if not callable(generator):
            raise InvalidTypeError(
                f"{where}: needs a function that returns an iterator, and is called in each epoch; "
                f"got {check.describe(generator)}"
            )
        signature = element_specs.generator_signature(
            where, types=output_types, shapes=output_shapes, given=output_signature
        )
        if not isinstance(args, list | tuple | None):
            raise InvalidTypeError(f"{where}: args must be a tuple, got {check.describe(args)}")
        values = tuple(check.element(where, value, as_value) for value in args or ())
        return Dataset(
            nodes.Generator(check_function(where, generator, len(values)), values, signature)
        )

    @staticmethod
    def range(*args: Any, output_type: Any = np.int64, name: str | None = None) -> Dataset:
        """Numbers in equal steps, with the arguments of Python's `range`.

        Args:
            args: `stop`, or `start` and `stop`, or `start`, `stop` and `step`.
            output_type: The dtype of the elements.

        >>> print(*Dataset.range(5, 1, -2))
        5 3
        """
        where = "Dataset.range"
        if not 1 <= len(args) <= 3:
            raise InvalidArgumentError(
                f"{where}: takes (stop), (start, stop) or (start, stop, step), got {args}"
            )
        given = {1: (0, *args, 1), 2: (*args, 1), 3: args}[len(args)]
        start, stop, step = (
            check.range_end(where, label, value)
            for label, value in zip(("start", "stop", "step"), given, strict=True)
        )
        if step == 0:
            raise InvalidArgumentError(f"{where}: step must not be 0")
        dtype = check.dtype(where, "output_type", output_type)
        return Dataset(nodes.Range(start, stop, step, dtype))

    @staticmethod
    def counter(
        start: Any = 0, step: Any = 1, dtype: Any = np.int64, name: str | None = None
    ) -> Dataset:
        """Numbers in equal steps, without end.

        >>> print(*Dataset.counter(0.5, 0.25, np.float32).take(3))
        0.5 0.75 1.0
        """
        where = "Dataset.counter"
        kind = check.dtype(where, "dtype", dtype)
        first, stride = (
            check.number(where, label, value, kind)
            for label, value in (("start", start), ("step", step))
        )
        return Dataset(nodes.Counter(first, stride, kind))

    @staticmethod
    def random(
        seed: int | None = None,
        rerandomize_each_iteration: bool | None = None,
        name: str | None = None,
    ) -> Dataset:
        """Random integers of int64 in [0, 2**32), without end.

        Args:
            seed: The same seed gives the same numbers.
            rerandomize_each_iteration: Whether every iteration draws other numbers.

        >>> a, b = (list(Dataset.random(seed=4).take(3)) for _ in range(2))
        >>> a == b
        True
        """
        where = "Dataset.random"
        again = check.flag(where, "rerandomize_each_iteration", rerandomize_each_iteration)
        return Dataset(nodes.Random(check.seed(where, seed), again, drawn=seed is None))

    @staticmethod
    def list_files(
        file_pattern: Any,
        shuffle: bool | None = None,
        seed: int | None = None,
        name: str | None = None,
    ) -> Dataset:
        """The names of the files that match one or several patterns.

        Args:
            file_pattern: A pattern with `*`, `?` or `[...]`, or a list of them.
            shuffle: Whether they come in random order (the default), or sorted.
            seed: The seed of that order.

        >>> print(*Dataset.list_files(__file__.replace("dataset.py", "data[r-t]*.py")))
        b'...dataset.py'
        """
        where = "Dataset.list_files"
        mixed = shuffle is None or check.boolean(where, "shuffle", shuffle)
        found = files.expand(check.paths(where, "file_pattern", file_pattern), where)
        names = nodes.FileNames(check.texts(map(os.fsencode, found)))
        if not mixed:
            return Dataset(names)
        key = check.seed(where, seed)
        return Dataset(nodes.Shuffle(names, len(found), key, drawn=seed is None))

    @staticmethod
    def from_numpy(
        path: Any, columns: Sequence[str] | None = None, on_error: str = "raise"
    ) -> Dataset:
        """The rows of arrays in `.npy` and `.npz` files, which are mapped into memory.

        Args:
            path: A path, a pattern, or a list of them; any fsspec URL.
            columns: Which arrays of an `.npz` file, or fields of a structured array, to read.
            on_error: "raise", or "skip" to leave out what cannot be read, with a warning at the
                end. The dataset then has no random access.

        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     np.save(f"{folder}/x.npy", np.arange(6).reshape(3, 2))
        ...     print(*Dataset.from_numpy(f"{folder}/*.npy"))
        [0 1] [2 3] [4 5]
        """
        if isinstance(path, np.ndarray) and path.dtype.kind not in "SUO":
            raise InvalidTypeError(
                "Dataset.from_numpy: needs a path, got an array; use Dataset.from_tensor_slices"
            )
        plan = table_plans.plan_files(
            "from_numpy", "numpy", paths=path, columns=columns, on_error=on_error
        )
        return Dataset(plan)

    @staticmethod
    def from_parquet(
        path: Any,
        columns: Sequence[str] | None = None,
        fill: Any = None,
        on_error: str = "raise",
    ) -> Dataset:
        """The rows of Parquet files, each a dict of its columns.

        Only the footers of the files are read before the dataset is used. docs/files.md says how
        each type of column is converted, and what a shuffle costs.

        Args:
            path: A path, a pattern, or a list of them; any fsspec URL.
            columns: Which columns to read; all of them by default.
            fill: What takes the place of a missing value: one value, or a dict by column.
            on_error: "raise", or "skip" to leave out what cannot be read, with a warning at the
                end. The dataset then has no random access.

        >>> import pyarrow, pyarrow.parquet, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     table = pyarrow.table({"x": [1, 2], "name": ["a", None]})
        ...     pyarrow.parquet.write_table(table, f"{folder}/rows.parquet")
        ...     for row in Dataset.from_parquet(f"{folder}/*.parquet", fill={"name": "?"}):
        ...         print(row["x"], row["name"])
        1 b'a'
        2 b'?'
        """
        plan = table_plans.plan_files(
            "from_parquet", "parquet", paths=path, columns=columns, fill=fill, on_error=on_error
        )
        return Dataset(plan)

    @staticmethod
    def from_arrow(
        source: Any,
        columns: Sequence[str] | None = None,
        fill: Any = None,
        on_error: str = "raise",
    ) -> Dataset:
        """The rows of Arrow tables, in memory or in files (IPC and Feather).

        Args:
            source: A table, a record batch or a list of them; or a path, a pattern, or a list of
                them. Tables are not copied. Local files are mapped into memory.
            columns: Which columns to read; all of them by default.
            fill: What takes the place of a missing value: one value, or a dict by column.
            on_error: "raise", or "skip" to leave out what cannot be read, with a warning at the
                end. The dataset then has no random access.

        >>> import pyarrow
        >>> rows = Dataset.from_arrow(pyarrow.table({"x": [1, 2], "ids": [[3], [4, 5]]}))
        >>> rows[1]["ids"]
        array([4, 5])
        """
        table = table_plans.arrow_table("Dataset.from_arrow", source)
        if table is not None:
            return Dataset(table_plans.plan_table("from_arrow", table, columns=columns, fill=fill))
        plan = table_plans.plan_files(
            "from_arrow", "arrow", paths=source, columns=columns, fill=fill, on_error=on_error
        )
        return Dataset(plan)

    @staticmethod
    def from_json_lines(
        path: Any, columns: Any = None, fill: Any = None, on_error: str = "raise"
    ) -> Dataset:
        """The lines of files with one JSON object per line, each a dict of its columns.

        Files that end with `.gz` or `.zst` are uncompressed. The first lines of the first file say
        which columns there are, and their types; a later line that does not fit is an error.

        Args:
            path: A path, a pattern, or a list of them; any fsspec URL.
            columns: Which columns to read; or a dict of their dtypes, where `["int64"]` is a list
                of any length. All by default, and then a line with more columns is an error.
            fill: What takes the place of a missing value: one value, or a dict by column.
            on_error: "raise", or "skip" to leave out what cannot be read, with a warning at the
                end.

        >>> import pathlib, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = pathlib.Path(folder, "rows.jsonl")
        ...     _ = path.write_text('{"x": 1, "name": "a"}\\n{"x": 2, "name": "b"}\\n')
        ...     for row in Dataset.from_json_lines(path, columns={"x": "float32"}):
        ...         print(row["x"])
        1.0
        2.0
        """
        return Dataset(table_plans.plan_json_lines(path, columns, fill, on_error))

    @staticmethod
    def from_tar(
        path: Any,
        columns: Sequence[str] | None = None,
        index: bool | files.Path = False,
        on_error: str = "raise",
    ) -> Dataset:
        """The samples of tar archives (WebDataset shards), each a dict of the bytes of its files.

        Neighbouring files of an archive that differ only in their extension are a sample:
        `0001.jpg` and `0001.cls` have the fields `jpg` and `cls`, and `__key__` is `0001`.
        Archives that end with `.gz` or `.tgz` are uncompressed. Workers divide the archives, not
        their samples.

        Args:
            path: A path, a pattern, or a list of them, as `shard-{0000..0099}.tar`; any fsspec URL.
            columns: Which fields to read; by default those of the first sample, and then a sample
                with other fields is an error.
            index: True gives random access, also for workers: each archive is scanned once for
                where its samples are, and this index is kept in `~/.cache/penstock/indexes`, or in
                the folder that is given instead of True. Not for compressed archives.
            on_error: "raise", or "skip" to leave out what cannot be read, with a warning at the
                end. The dataset then has no random access.

        >>> import os, tempfile
        >>> from penstock.io import TarWriter
        >>> path = os.path.join(tempfile.mkdtemp(), "shard.tar")
        >>> with TarWriter(path) as writer:
        ...     for number in range(2):
        ...         writer.write({"__key__": f"{number:04}", "txt": "text", "cls": str(number)})
        >>> [(sample["__key__"], int(sample["cls"])) for sample in Dataset.from_tar(path)]
        [(b'0000', 0), (b'0001', 1)]
        """
        return Dataset(table_plans.plan_tar(path, columns, index, on_error))

    @staticmethod
    def from_array_record(path: Any, on_error: str = "raise") -> Dataset:
        """The records of ArrayRecord files, as bytes, by the package `array_record`.

        Args:
            path: A local path, a pattern, or a list of them.
            on_error: "raise", or "skip" to leave out what cannot be read, with a warning at the
                end. The dataset then has no random access.

        >>> import os, tempfile
        >>> from array_record.python.array_record_module import ArrayRecordWriter
        >>> path = os.path.join(tempfile.mkdtemp(), "x.array_record")
        >>> writer = ArrayRecordWriter(path, "group_size:1")
        >>> for number in range(3):
        ...     writer.write(b"record %d" % number)
        >>> writer.close()
        >>> Dataset.from_array_record(path)[2]
        b'record 2'
        """
        plan = table_plans.plan_files(
            "from_array_record", "array_record", paths=path, on_error=on_error
        )
        return Dataset(plan)

    @staticmethod
    def from_lance(
        path: Any,
        columns: Sequence[str] | None = None,
        fill: Any = None,
        version: int | None = None,
        on_error: str = "raise",
    ) -> Dataset:
        """The rows of a Lance dataset, each a dict of its columns, by the package `lance`.

        The dataset keeps the version that it was made with: rows that are added or deleted later
        do not change it.

        Args:
            path: The folder of the dataset; a local path, or a URL that `lance` opens.
            columns: Which columns to read; all by default.
            fill: What takes the place of missing values: one value, or a dict by column.
            version: Which version to read; the latest by default.
            on_error: "raise", or "skip" to leave out what cannot be read, with a warning at the
                end.

        >>> import lance, os, pyarrow, tempfile
        >>> path = os.path.join(tempfile.mkdtemp(), "x.lance")
        >>> _ = lance.write_dataset(pyarrow.table({"x": [1, 2], "name": ["a", "b"]}), path)
        >>> Dataset.from_lance(path)[1]
        {'x': np.int64(2), 'name': b'b'}
        """
        return Dataset(table_plans.plan_lance(path, columns, fill, version, on_error))

    @staticmethod
    def from_mds(
        path: Any, columns: Sequence[str] | None = None, on_error: str = "raise"
    ) -> Dataset:
        """The samples of an MDS dataset (MosaicML Streaming), each a dict of its columns.

        The shards that `index.json` lists are read in order, without the `streaming` package.
        Images, JSON and text are bytes: decode them in a `map`.

        Args:
            path: A folder with an `index.json`, or a list of them; any fsspec URL. Also single
                shards, whose names contain `.mds`.
            columns: Which columns to read; all by default.
            on_error: "raise", or "skip" to leave out what cannot be read, with a warning at the
                end. The dataset then has no random access.

        >>> import json, os, struct, tempfile
        >>> path = os.path.join(tempfile.mkdtemp(), "shard.00000.mds")
        >>> head = {"column_names": ["x"], "column_encodings": ["int8"], "column_sizes": [1]}
        >>> text = json.dumps(head).encode()
        >>> places = [16 + len(text), 17 + len(text), 18 + len(text)]
        >>> with open(path, "wb") as shard:
        ...     _ = shard.write(struct.pack("<4I", 2, *places) + text + bytes([5, 6]))
        >>> list(Dataset.from_mds(path))
        [{'x': np.int8(5)}, {'x': np.int8(6)}]
        """
        return Dataset(table_plans.plan_mds(path, columns, on_error))

    @staticmethod
    def from_image_folder(
        path: Any,
        class_names: Sequence[str] | None = None,
        channels: int = 3,
        num_parallel_calls: int | None = AUTOTUNE,
        on_error: str = "raise",
    ) -> Dataset:
        """The images of a folder that has a sub-folder for each class.

        Each is a dict of its `image`, an array of (height, width, channels), its `label`, which is
        the number of its class, and its `path`. Classes and files are sorted by name;
        `io.list_classes` has the names of the classes. An image is read and decoded when it is
        needed: `ds[i]` reads one file, and a shuffle before a `map` holds names only.

        Args:
            path: The folder; a local path or an fsspec URL. Images are JPEG, PNG, GIF (the first
                frame) or BMP files, at any depth below the folder of their class. Hidden files
                and folders, whose names begin with a dot, are passed over.
            class_names: The sub-folders to read, in the order of their labels, which count from 0
                within this list; all by default.
            channels: 1 for grey, 3 for colour, 4 for colour with opacity, 0 as in each file.
            num_parallel_calls: How many images to decode at once.
            on_error: "raise", or "skip" to leave out what cannot be read, with a warning at the
                end. The dataset then has no random access.

        >>> import os, tempfile
        >>> from penstock import io
        >>> folder = tempfile.mkdtemp()
        >>> for number, name in enumerate(["cat", "dog"]):
        ...     pixels = np.full((4, 6, 3), number, np.uint8)
        ...     io.write_file(os.path.join(folder, name, "0.png"), io.encode_png(pixels))
        >>> ds = Dataset.from_image_folder(folder)
        >>> len(ds), ds[1]["image"].shape, int(ds[1]["label"]), io.list_classes(folder)[1]
        (2, (4, 6, 3), 1, 'dog')
        """
        where = "Dataset.from_image_folder"
        if channels not in (0, 1, 3, 4):
            raise InvalidArgumentError(f"{where}: channels must be 0, 1, 3 or 4, got {channels!r}")
        names = image_folders.check_class_names(class_names, where)
        paths, labels = image_folders.list_images(files.as_path(path, where), names, where)
        table = Dataset.from_tensor_slices({"path": paths, "label": np.array(labels, np.int32)})
        images = table.map(
            functools.partial(image_folders.read_image, channels),
            num_parallel_calls=num_parallel_calls,
            output_signature=image_folders.spec_of(channels),
        )
        return Dataset(BadFiles(where, on_error).skip_in(images.__plan__))

    @staticmethod
    def from_pandas(frame: Any, columns: Sequence[str] | None = None, fill: Any = None) -> Dataset:
        """The rows of a pandas frame, each a dict of its columns, without the index.

        Args:
            frame: A `pandas.DataFrame`.
            columns: Which columns to read; all of them by default.
            fill: What takes the place of a missing value: one value, or a dict by column.

        >>> import pandas
        >>> rows = Dataset.from_pandas(pandas.DataFrame({"x": [1, 2], "name": ["a", "b"]}))
        >>> rows[1]["x"], rows[1]["name"]
        (np.int64(2), b'b')
        """
        table = foreign_datasets.table_of_pandas(frame)
        return Dataset(table_plans.plan_table("from_pandas", table, columns=columns, fill=fill))

    @staticmethod
    def from_polars(frame: Any, columns: Sequence[str] | None = None, fill: Any = None) -> Dataset:
        """The rows of a Polars frame, each a dict of its columns.

        Args:
            frame: A `polars.DataFrame`.
            columns: Which columns to read; all of them by default.
            fill: What takes the place of a missing value: one value, or a dict by column.

        >>> import polars
        >>> rows = Dataset.from_polars(polars.DataFrame({"x": [1, 2], "name": ["a", "b"]}))
        >>> rows[1]["x"], rows[1]["name"]
        (np.int64(2), b'b')
        """
        table = foreign_datasets.table_of_polars(frame)
        return Dataset(table_plans.plan_table("from_polars", table, columns=columns, fill=fill))

    @staticmethod
    def from_huggingface(
        dataset: Any, columns: Sequence[str] | None = None, fill: Any = None
    ) -> Dataset:
        """The rows of a Hugging Face dataset, each a dict of its columns.

        Args:
            dataset: A `datasets.Dataset`, whose Arrow table is used in place, in the order of its
                indices; or a `datasets.IterableDataset`, which is read from its start.
            columns: Which columns to read; those of the dataset's format by default.
            fill: What takes the place of a missing value: one value, or a dict by column.

        >>> import datasets
        >>> texts = datasets.Dataset.from_dict({"text": ["a", "b", "c"]}).select([2, 0])
        >>> [row["text"] for row in Dataset.from_huggingface(texts)]
        [b'c', b'a']
        """
        return Dataset(foreign_datasets.plan_huggingface(dataset, columns, fill))

    @staticmethod
    def from_ray(dataset: Any, columns: Sequence[str] | None = None, fill: Any = None) -> Dataset:
        """The rows of a dataset of Ray Data, each a dict of its columns.

        Args:
            dataset: A `ray.data.Dataset`, which Ray computes anew in each iteration, in one order
                (this sets its `preserve_order`); or what its `materialize()` returned, whose rows
                this process holds, with random access.
            columns: Which columns to read; all by default.
            fill: What takes the place of a missing value: one value, or a dict by column.

        >>> def read(path):
        ...     import ray.data
        ...     return Dataset.from_ray(ray.data.read_parquet(path)).batch(32)
        >>> Dataset.from_ray([1, 2])
        Traceback (most recent call last):
        penstock.errors.InvalidTypeError: Dataset.from_ray: needs a ray.data.Dataset, got ...
        """
        return Dataset(foreign_datasets.plan_ray(dataset, columns, fill))

    @staticmethod
    def from_torch(dataset: Any, num_parallel_calls: int | None = None) -> Dataset:
        """The items of a PyTorch dataset, as NumPy values.

        Args:
            dataset: With `__getitem__` and `__len__`, an item is read by its index. Any other
                iterable is read from its start; its first element says what elements look like.
            num_parallel_calls: How many items to read at once, as in `map`.

        >>> class Squares:
        ...     def __len__(self):
        ...         return 3
        ...     def __getitem__(self, number):
        ...         return number * number
        >>> print(*Dataset.from_torch(Squares()))
        0 1 4
        """
        return Dataset(foreign_datasets.plan_torch(dataset, num_parallel_calls))

    @staticmethod
    def load(
        path: Any,
        element_spec: Any = None,
        compression: str | None = None,
        reader_func: Call | None = None,
        wait: bool = False,
    ) -> Dataset:
        """The elements that `save` wrote.

        Args:
            path: The folder.
            element_spec: What an element looks like; by default as it was saved.
            compression: How the elements are packed; by default as they were saved.
            reader_func: Gets a dataset of datasets, one per shard, and returns a dataset.
            wait: Whether to wait until another process has saved a dataset there.

        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     Dataset.range(3).save(folder)
        ...     print(*Dataset.load(folder))
        0 1 2
        """
        where = "Dataset.load"
        folder = check.path(where, "path", path)
        packing = check.compression(where, compression)
        info = saved.describe(folder, packing, check.boolean(where, "wait", wait))
        packing = info.compression if compression is None else packing
        spec = info.spec
        if element_spec is not None:
            spec = check.signature(where, element_spec, "element_spec")
        read = functools.partial(nodes.Saved, folder, spec=spec, compression=packing)
        if reader_func is None:
            return Dataset(read(shards=info.shards, count=info.count))
        parts = [Dataset(read(shards=(shard,), count=UNKNOWN)) for shard in info.shards]
        parts = parts or [Dataset(read(shards=(), count=0))]
        function = check_function(where, reader_func, 1)
        made = function.call(_dataset_of_datasets(parts))
        tracing.check_dataset(where, function, made)
        return Dataset(made._plan)

    # Elementwise

    @explain_arguments
    def map(
        self,
        map_func: Call,
        num_parallel_calls: int | None = None,
        deterministic: bool | None = None,
        synchronous: bool | None = None,
        use_unbounded_threadpool: bool = False,
        name: str | None = None,
        *,
        vectorized: bool = False,
        random: bool = False,
        seed: int | None = None,
        output_signature: Any = None,
    ) -> Dataset:
        """A function of every element.

        The function runs once per element and iteration, in order unless `deterministic` is False.
        It may run on a few more elements when `element_spec` is asked for; what these calls assign
        to a `Variable` is undone. An `output_signature` avoids them.

        Args:
            map_func: Gets the element (a tuple as separate arguments) and returns a new one.
            num_parallel_calls: How many calls at once; AUTOTUNE finds a number. They run in
                threads, and move to processes of this machine where threads do not scale;
                `Options.executor` decides it for you. A process has copies of what the function
                captures: what a call changes (a list, a cache, a global variable) stays there.
                Each process draws other numbers with `numpy.random`: use `random=True`.
            deterministic: Whether parallel calls keep the order; by default the options decide.
            synchronous: True keeps the calls in the caller's thread; not with num_parallel_calls.
            use_unbounded_threadpool: Accepted and ignored.
            vectorized: Whether the function gets and gives whole columns, with a leading axis
                over many elements.
            random: Whether the function gets, as its last argument, a `numpy.random.Generator` that
                depends on the seed, the epoch and where the element comes from alone.
            seed: The seed for `random`.
            output_signature: What the results look like, for `element_spec`.

        >>> print(*Dataset.range(3).map(lambda x: x * 10))
        0 10 20
        """
        where = "Dataset.map"
        parallel = check.parallelism(where, "num_parallel_calls", num_parallel_calls)
        if synchronous and parallel is not None:
            raise InvalidArgumentError(
                f"{where}: synchronous and num_parallel_calls={parallel} exclude each other"
            )
        if vectorized and random:
            raise InvalidArgumentError(f"{where}: vectorized and random exclude each other")
        if seed is not None and not random:
            raise InvalidArgumentError(f"{where}: seed={seed} needs random=True")
        if output_signature is not None:
            output_signature = check.signature(where, output_signature)
        return Dataset(
            nodes.Map(
                self._plan,
                function=tracing.element_function(
                    where, map_func, self._plan, is_random=bool(random)
                ),
                parallel=parallel,
                deterministic=check.determinism(where, deterministic),
                vectorized=check.boolean(where, "vectorized", vectorized),
                random=check.seed(where, seed) if random else None,
                signature=output_signature,
                drawn=random and seed is None,
            )
        )

    def filter(self, predicate: Call, name: str | None = None) -> Dataset:
        """The elements for which `predicate` is True.

        >>> print(*Dataset.range(6).filter(lambda x: x % 2 == 0))
        0 2 4
        """
        function = tracing.predicate_function("Dataset.filter", predicate, self._plan)
        return Dataset(nodes.Filter(self._plan, function))

    def take_while(self, predicate: Call, name: str | None = None) -> Dataset:
        """The elements before the first for which `predicate` is False.

        >>> print(*Dataset.range(6).take_while(lambda x: x < 3))
        0 1 2
        """
        function = tracing.predicate_function("Dataset.take_while", predicate, self._plan)
        return Dataset(nodes.TakeWhile(self._plan, function))

    def flat_map(self, map_func: Call, name: str | None = None) -> Dataset:
        """The elements of the datasets that `map_func` makes, one dataset after the other.

        >>> print(*Dataset.range(4).flat_map(Dataset.range))
        0 0 1 0 1 2
        """
        function = tracing.dataset_function("Dataset.flat_map", map_func, self._plan)
        return Dataset(nodes.FlatMap(self._plan, function))

    def interleave(
        self,
        map_func: Call,
        cycle_length: int | None = None,
        block_length: int | None = None,
        num_parallel_calls: int | None = None,
        deterministic: bool | None = None,
        name: str | None = None,
    ) -> Dataset:
        """The elements of the datasets that `map_func` makes, several datasets in turn.

        Args:
            map_func: Gets an element and returns a dataset.
            cycle_length: How many datasets are open at once; 2 if not given, on every machine.
            block_length: How many elements each gives when it is its turn; 1 if not given.
            num_parallel_calls: How many datasets are read at once, in threads.
            deterministic: Whether parallel calls keep the order; by default the options decide.

        >>> print(*Dataset.range(3).interleave(lambda x: Dataset.range(10 * x, 10 * x + 2)))
        0 10 1 11 20 21
        """
        where = "Dataset.interleave"
        cycle = check.parallelism(where, "cycle_length", cycle_length)
        block = 1 if block_length is None else block_length
        return Dataset(
            nodes.Interleave(
                self._plan,
                function=tracing.dataset_function(where, map_func, self._plan),
                cycle=DEFAULT_CYCLE if cycle in (None, AUTOTUNE) else cycle,
                block=check.integer(where, "block_length", block, at_least=1),
                parallel=check.parallelism(where, "num_parallel_calls", num_parallel_calls),
                deterministic=check.determinism(where, deterministic),
            )
        )

    def scan(self, initial_state: Any, scan_func: Call, name: str | None = None) -> Dataset:
        """A function of a state and of every element that gives a new state and a new element.

        Args:
            initial_state: A value or structure; its dtypes stay, its shapes may change.
            scan_func: Gets (state, element) and returns (state, element).

        >>> print(*Dataset.range(5).scan(np.int64(0), lambda s, x: (s + x, s + x)))
        0 1 3 6 10
        """
        where = "Dataset.scan"
        initial = check.single(where, initial_state)
        state = initial.chunk.elements()[0]
        function = tracing.scan_function(where, scan_func, self._plan, state)
        return Dataset(nodes.Scan(self._plan, initial, function))

    def ignore_errors(
        self, log_warning: bool = False, name: str | None = None, log: bool = False
    ) -> Dataset:
        """The elements without those whose computation raises an error.

        `Iterator.profile()` has the number of errors of each operator.

        Args:
            log_warning: Whether the first ten drops are logged, and at the end their number
                (logger `penstock`).
            log: The same by a shorter name.

        >>> print(*Dataset.from_tensor_slices([b"1", b"?", b"3"]).map(int).ignore_errors())
        1 3
        """
        where = "Dataset.ignore_errors"
        is_logged = check.boolean(where, "log_warning", log_warning)
        is_logged |= check.boolean(where, "log", log)
        return Dataset(nodes.IgnoreErrors(self._plan, is_logged))

    def rejection_resample(
        self,
        class_func: Call,
        target_dist: Any,
        initial_dist: Any = None,
        seed: int | None = None,
        name: str | None = None,
    ) -> Dataset:
        """Pairs (class, element), drawn such that classes come in the proportions `target_dist`.

        Args:
            class_func: Gets an element and returns the number of its class.
            target_dist: The proportions to reach, one per class; their sum is 1.
            initial_dist: The proportions that the elements come in; estimated if None.
            seed: The seed of the drawing.

        >>> ds = Dataset.range(1000).rejection_resample(lambda x: x % 10 // 9, [0.5, 0.5], seed=1)
        >>> 0.4 < np.mean([number for number, _ in ds]) < 0.6
        np.True_
        """
        where = "Dataset.rejection_resample"
        target = sampling.distribution(where, "target_dist", target_dist)
        sampling.check_whole(where, "target_dist", target_dist)
        labelled = self._add_labels(check_function(where, class_func))
        if initial_dist is None:
            estimate = sampling.Estimate(target)
            weighed = labelled.scan(estimate.initial, estimate)
        else:
            initial = sampling.distribution(where, "initial_dist", initial_dist)
            if len(initial) != len(target):
                raise InvalidArgumentError(
                    f"{where}: target_dist has {len(target)} classes, initial_dist {len(initial)}"
                )
            chances = sampling.acceptance(target, initial)
            weighed = labelled.map(functools.partial(sampling.weigh, chances))
        words = nodes.Random(check.seed(where, seed), rerandomize=True, drawn=seed is None)
        drawn = Dataset.zip(weighed, Dataset(words)).filter(sampling.is_kept)
        result = drawn.map(sampling.drop_chance)
        if self._plan.cardinality == INFINITE:
            return Dataset(nodes.AssertCardinality(result._plan, INFINITE))
        return result

    def _add_labels(self, class_func: Function) -> Dataset:
        @wraps_for("rejection_resample", class_func.call)
        def label(*parts: Any) -> tuple[Any, Any]:
            return class_func.call(*parts), parts[0] if len(parts) == 1 else parts

        return self.map(label)

    # Batching

    @explain_arguments
    def batch(
        self,
        batch_size: int,
        drop_remainder: bool = False,
        num_parallel_calls: int | None = None,
        deterministic: bool | None = None,
        name: str | None = None,
    ) -> Dataset:
        """Consecutive elements stacked, `batch_size` at a time.

        Args:
            batch_size: How many elements make a batch.
            drop_remainder: Whether a last, smaller batch is left out.
            num_parallel_calls: How many batches are made at once, in threads.
            deterministic: Whether parallel calls keep the order; by default the options decide.

        >>> print(*Dataset.range(5).batch(2))
        [0 1] [2 3] [4]
        """
        where = "Dataset.batch"
        return Dataset(
            nodes.Batch(
                self._plan,
                size=check.integer(where, "batch_size", batch_size, at_least=1),
                drop_remainder=check.boolean(where, "drop_remainder", drop_remainder),
                parallel=check.parallelism(where, "num_parallel_calls", num_parallel_calls),
                deterministic=check.determinism(where, deterministic),
            )
        )

    @explain_arguments
    def padded_batch(
        self,
        batch_size: int,
        padded_shapes: Any = None,
        padding_values: Any = None,
        drop_remainder: bool = False,
        name: str | None = None,
    ) -> Dataset:
        """Consecutive elements padded to a common shape and stacked.

        Args:
            batch_size: How many elements make a batch.
            padded_shapes: The shape to pad to, per component; None, or None for a dimension,
                means the largest in the batch.
            padding_values: The value to pad with, per component or one for all; 0 or "" if None.
            drop_remainder: Whether a last, smaller batch is left out.

        >>> ds = Dataset.range(1, 4).map(lambda x: np.full(x, x))
        >>> print(*ds.padded_batch(3))
        [[1 0 0]
         [2 2 0]
         [3 3 3]]
        """
        where = "Dataset.padded_batch"
        size = check.integer(where, "batch_size", batch_size, at_least=1)
        shapes: tuple[TensorShape, ...] | None = None
        values: tuple[Any, ...] | None = None
        given = padded_shapes is not None or padding_values is not None
        spec = _spec_of(self._plan) if given else known_spec(self._plan)
        if spec is not None:
            padding.check_paddable(where, spec, padded_shapes is not None)
        if padded_shapes is not None:
            shapes = padding.padded_shapes(where, padded_shapes, spec)
        if padding_values is not None:
            values = padding.padding_values(where, padding_values, spec)
        drop = check.boolean(where, "drop_remainder", drop_remainder)
        return Dataset(nodes.PaddedBatch(self._plan, size, drop, shapes=shapes, values=values))

    def ragged_batch(
        self,
        batch_size: int,
        drop_remainder: bool = False,
        row_splits_dtype: Any = np.int64,
        name: str | None = None,
    ) -> Dataset:
        """Consecutive elements stacked; where shapes are not known they become a `Ragged`.

        Args:
            batch_size: How many elements make a batch.
            drop_remainder: Whether a last, smaller batch is left out.
            row_splits_dtype: int64 or int32.

        >>> print(*Dataset.range(1, 4).map(lambda x: np.full(x, x)).ragged_batch(2))
        <Ragged [[1], [2, 2]]> <Ragged [[3, 3, 3]]>
        """
        where = "Dataset.ragged_batch"
        return Dataset(
            nodes.RaggedBatch(
                self._plan,
                check.integer(where, "batch_size", batch_size, at_least=1),
                check.boolean(where, "drop_remainder", drop_remainder),
                row_splits=check.dtype(where, "row_splits_dtype", row_splits_dtype),
            )
        )

    def unbatch(self, name: str | None = None) -> Dataset:
        """The rows of every element, one by one.

        >>> print(*Dataset.range(5).batch(2).unbatch())
        0 1 2 3 4
        """
        rows = element_specs.rows_of_elements("Dataset.unbatch", self._plan)
        return Dataset(nodes.Unbatch(self._plan, rows))

    def rebatch(
        self, batch_size: Any, drop_remainder: bool = False, name: str | None = None
    ) -> Dataset:
        """The rows of every element, in batches of another size.

        Args:
            batch_size: How many rows make a batch, or a list of sizes to go through in turn.
            drop_remainder: Whether a last, smaller batch is left out.

        >>> print(*Dataset.range(8).batch(4).rebatch([2, 1, 1]))
        [0 1] [2] [3] [4 5] [6] [7]
        """
        where = "Dataset.rebatch"
        given = batch_size if isinstance(batch_size, list | tuple | np.ndarray) else [batch_size]
        sizes = tuple(check.integer(where, "batch_size", one, at_least=0) for one in given)
        if not sizes:
            raise InvalidArgumentError(f"{where}: batch_size must not be an empty list")
        drop = check.boolean(where, "drop_remainder", drop_remainder)
        rows = element_specs.rows_of_elements(where, self._plan)
        static = bool(rows and sizes[0] and len(set(sizes)) == 1 and rows % sizes[0] == 0)
        return Dataset(
            nodes.Rebatch(
                nodes.Unbatch(self._plan), sizes=sizes, drop_remainder=drop, static=static
            )
        )

    def pack(
        self,
        length: int,
        strategy: str = "first_fit",
        separator: Any = None,
        padding: Any = 0,
        open_rows: int = 16,
        too_long: str = "error",
        name: str | None = None,
    ) -> Dataset:
        """Rows of `length` tokens, each made of several elements, which are sequences of tokens.

        An element is a 1-D array, or a dict of 1-D arrays of one length. A row is a dict of the
        same features (`tokens`, if elements are bare arrays) and of `segment_ids` (which element
        of the row a token is from: 1, 2, ...; 0 for padding), `positions` (the index of a token in
        its segment) and `loss_mask` (whether a token has one before it in its segment, from which
        a model can predict it). A bool feature `loss_mask` of the elements is packed as well, and
        a token counts only where both are true.

        Args:
            length: How many tokens a row has.
            strategy: "first_fit" puts an element into the first of the open rows that has room
                for it, "best_fit" into the fullest one. "concat_split" writes elements one after
                the other and cuts the result every `length` tokens.
            separator: A token that follows each element; with several features, a dict of them.
            padding: What fills the rest of a row, or a dict of that by feature.
            open_rows: How many rows are open at once. If an element fits into none of them, the
                row that was opened first is handed on as it is.
            too_long: What to do with an element of more than `length` tokens: "error", "split"
                into several rows, or "truncate". With "concat_split" it is always split.

        >>> ds = Dataset.from_tensor_slices([3, 4, 1]).map(lambda n: np.full(n, n))
        >>> for row in ds.pack(5):
        ...     print(row["tokens"], row["segment_ids"], row["positions"])
        [3 3 3 1 0] [1 1 1 2 0] [0 1 2 0 0]
        [4 4 4 4 0] [1 1 1 1 0] [0 1 2 3 0]
        """
        where = "Dataset.pack"
        check.one_of(where, "strategy", strategy, packed.STRATEGIES)
        check.one_of(where, "too_long", too_long, packed.TOO_LONG)
        splits = strategy == "concat_split"
        plan = nodes.Pack(
            self._plan,
            length=check.integer(where, "length", length, at_least=1),
            strategy=strategy,
            separator=check.feature_values(where, "separator", separator),
            padding=check.feature_values(where, "padding", padding),
            open_rows=check.integer(where, "open_rows", open_rows, at_least=1),
            too_long="split" if splits else too_long,
        )
        known_spec(plan)
        return Dataset(plan)

    def window(
        self,
        size: int,
        shift: int | None = None,
        stride: int = 1,
        drop_remainder: bool = False,
        name: str | None = None,
    ) -> Dataset:
        """Datasets of `size` elements; each component becomes a dataset of its own.

        Args:
            size: How many elements are in a window.
            shift: How far the next window begins; `size` if None.
            stride: The distance between two elements of a window.
            drop_remainder: Whether windows that are not full are left out.

        >>> [list(map(int, window)) for window in Dataset.range(4).window(3, shift=1)]
        [[0, 1, 2], [1, 2, 3], [2, 3], [3]]
        """
        where = "Dataset.window"
        return Dataset(
            nodes.Window(
                self._plan,
                size=check.integer(where, "size", size, at_least=1),
                shift=check.integer(where, "shift", size if shift is None else shift, at_least=1),
                stride=check.integer(where, "stride", stride, at_least=1),
                drop_remainder=check.boolean(where, "drop_remainder", drop_remainder),
            )
        )

    def group_by_window(
        self,
        key_func: Call,
        reduce_func: Call,
        window_size: int | None = None,
        window_size_func: Call | None = None,
        name: str | None = None,
    ) -> Dataset:
        """Windows of elements with one key, each reduced to a dataset whose elements come out.

        Args:
            key_func: Gets an element and returns its key, an int64.
            reduce_func: Gets a key and the dataset of a window, and returns a dataset.
            window_size: How many elements fill a window.
            window_size_func: Gets a key and returns the size of its windows.

        >>> print(*Dataset.range(7).group_by_window(lambda x: x % 2, lambda k, d: d.batch(2), 2))
        [0 2] [1 3] [4 6] [5]
        """
        where = "Dataset.group_by_window"
        if (window_size is None) == (window_size_func is None):
            raise InvalidArgumentError(
                f"{where}: needs window_size or window_size_func, one of the two"
            )
        size: int | Function
        if window_size_func is None:
            size = check.integer(where, "window_size", window_size)
        else:
            size = check_function(where, window_size_func, 1)
        key, reduce = tracing.grouping_functions(
            where,
            key=key_func,
            reduce=reduce_func,
            plan=self._plan,
            as_dataset=Dataset.from_tensors,
        )
        return Dataset(nodes.GroupByWindow(self._plan, key=key, reduce=reduce, size=size))

    def bucket_by_sequence_length(
        self,
        element_length_func: Call,
        bucket_boundaries: Sequence[int],
        bucket_batch_sizes: Sequence[int],
        padded_shapes: Any = None,
        padding_values: Any = None,
        pad_to_bucket_boundary: bool = False,
        no_padding: bool = False,
        drop_remainder: bool = False,
        name: str | None = None,
    ) -> Dataset:
        """Padded batches of elements whose lengths are similar.

        Args:
            element_length_func: Gets an element and returns its length.
            bucket_boundaries: The lengths at which a new bucket begins.
            bucket_batch_sizes: The batch size of each bucket, one more than there are boundaries.
            padded_shapes: As for `padded_batch`.
            padding_values: As for `padded_batch`.
            pad_to_bucket_boundary: Whether unknown dimensions are padded to the longest length
                that the bucket can hold.
            no_padding: Whether batches are stacked as they are.
            drop_remainder: Whether smaller batches are left out.

        >>> ds = Dataset.range(1, 5).map(lambda x: np.full(x, x))
        >>> print(*ds.bucket_by_sequence_length(len, [3], [2, 2]), sep=", ")
        [[1 0]
         [2 2]], [[3 3 3 0]
         [4 4 4 4]]
        """
        where = "bucket_by_sequence_length"
        buckets = padding.make_buckets(bucket_boundaries, bucket_batch_sizes)
        length = check_function(f"Dataset.{where}", element_length_func)
        plan, is_declared = self._plan, known_spec(self._plan) is not None

        @wraps_for(where, element_length_func)
        def bucket(*parts: Any) -> int:
            if element_length_func is len:
                padding.check_sequence(*parts)
            return buckets.bucket_of(length.call(*parts))

        def batches(number: Any, window: Dataset) -> Dataset:
            size = buckets.size_of(number)
            if no_padding:
                return window.batch(size, drop_remainder)
            shapes = padded_shapes
            if pad_to_bucket_boundary:
                longest = buckets.longest(number)
                shapes = padding.fill_unknown(
                    shapes, spec=_spec_of(plan), is_declared=is_declared, length=longest
                )
            return window.padded_batch(
                size,
                padded_shapes=shapes,
                padding_values=padding_values,
                drop_remainder=drop_remainder,
            )

        made = self.group_by_window(bucket, batches, window_size_func=buckets.size_of)._plan
        assert isinstance(made, nodes.GroupByWindow)
        return Dataset(replace(made, keys=tuple(range(len(buckets.sizes)))))

    # Ordering

    def shuffle(
        self,
        buffer_size: int | None = None,
        seed: int | None = None,
        reshuffle_each_iteration: bool | None = True,
        name: str | None = None,
        *,
        blocks: int | None = None,
    ) -> Dataset:
        """The elements in random order: none comes more than `buffer_size` - 1 places too early.

        Args:
            buffer_size: From how many elements the next one is drawn; UNKNOWN_CARDINALITY for all.
            seed: The same seed gives the same orders.
            reshuffle_each_iteration: Whether every iteration, and every repetition, has an order
                of its own.
            blocks: Instead of `buffer_size`, for files that are read by blocks, such as the row
                groups of Parquet: the blocks come in random order, and the elements of each
                `blocks` neighbours are mixed. Each block is read about once.

        >>> sorted(map(int, Dataset.range(5).shuffle(5, seed=1)))
        [0, 1, 2, 3, 4]
        """
        where = "Dataset.shuffle"
        again = reshuffle_each_iteration is None or check.boolean(
            where, "reshuffle_each_iteration", reshuffle_each_iteration
        )
        key = check.seed(where, seed)
        if blocks is not None:
            window = self._check_blocks(where, buffer_size, blocks)
            plan: Node = nodes.ShuffleBlocks(
                self._plan,
                buffer=sys.maxsize,
                seed=key,
                reshuffle=again,
                drawn=seed is None,
                blocks=window,
            )
            return Dataset(plan)
        if buffer_size is True:
            warnings.warn(
                f"{where}: buffer_size=True draws from 1 element, so it shuffles nothing; write "
                "shuffle(len(dataset)) to shuffle all elements",
                stacklevel=2,
            )
        if buffer_size is None:
            raise InvalidArgumentError(
                f"{where}: needs a buffer_size, from how many elements the next one is drawn; "
                "len(dataset), or UNKNOWN_CARDINALITY, shuffles all of them"
            )
        buffer = check.integer(where, "buffer_size", buffer_size)
        if buffer < 1 and buffer != UNKNOWN:
            raise InvalidArgumentError(
                f"{where}: buffer_size must be at least 1, or UNKNOWN_CARDINALITY (-2) for all, "
                f"got {buffer}"
            )
        buffer = sys.maxsize if buffer == UNKNOWN else buffer
        return Dataset(
            nodes.Shuffle(self._plan, buffer=buffer, seed=key, reshuffle=again, drawn=seed is None)
        )

    def _check_blocks(self, where: str, buffer_size: Any, blocks: Any) -> int:
        if buffer_size is not None:
            raise InvalidArgumentError(
                f"{where}: buffer_size={buffer_size} and blocks={blocks} exclude each other; "
                "the window is one or the other"
            )
        window = check.integer(where, "blocks", blocks, at_least=1)
        if self._plan.blocked is not None:
            raise InvalidArgumentError(
                f"{where}: blocks={blocks} needs random access, but {self._plan.blocked}; "
                "shuffle before that, or with buffer_size"
            )
        if block_lengths(self._plan) is None:
            raise InvalidArgumentError(
                f"{where}: blocks={blocks} needs a source that is read by blocks, as from_parquet, "
                "with nothing between them that changes the order; shuffle with buffer_size, which "
                "holds no elements here"
            )
        return window

    def repeat(self, count: int | None = None, name: str | None = None) -> Dataset:
        """The elements, `count` times; None or a negative number: without end.

        >>> print(*Dataset.range(2).repeat(3))
        0 1 0 1 0 1
        """
        times = INFINITE if count is None else check.integer("Dataset.repeat", "count", count)
        return Dataset(nodes.Repeat(self._plan, max(times, INFINITE)))

    # Counting

    def take(self, count: int, name: str | None = None) -> Dataset:
        """The first `count` elements; a negative number: all.

        >>> print(*Dataset.range(9).take(2))
        0 1
        """
        number = check.integer("Dataset.take", "count", count)
        return Dataset(self._plan if number < 0 else nodes.Take(self._plan, number))

    def skip(self, count: int, name: str | None = None) -> Dataset:
        """All but the first `count` elements; a negative number: none is left.

        >>> print(*Dataset.range(4).skip(2))
        2 3
        """
        number = check.integer("Dataset.skip", "count", count)
        return Dataset(nodes.Take(self._plan, 0) if number < 0 else nodes.Skip(self._plan, number))

    def shard(self, num_shards: int, index: int, name: str | None = None) -> Dataset:
        """Every `num_shards`-th element, from number `index` on.

        Shards that several processes read belong together only if all of them shuffle alike: shard
        before you shuffle, or give `shuffle` and `list_files` a seed. Where neither is so, this
        warns.

        >>> print(*Dataset.range(7).shard(3, 1))
        1 4
        """
        where = "Dataset.shard"
        shards = check.integer(where, "num_shards", num_shards)
        number = check.integer(where, "index", index)
        if shards != SHARD_HINT:
            check.integer(where, "num_shards", shards, at_least=1)
            if not 0 <= number < shards:
                raise InvalidArgumentError(
                    f"{where}: index must be from 0 to {shards - 1} with {shards} shards, "
                    f"got {number}"
                )
        if shards > 1 and not seeds.is_reproducible() and draws_order(self._plan):
            warnings.warn(
                f"{where}: the elements are shuffled without a seed before shard({shards}, "
                f"{number}), so every process has another order and their shards overlap; shard "
                "first, give shuffle or list_files a seed, or call penstock.random.set_seed",
                stacklevel=2,
            )
        return Dataset(nodes.Shard(self._plan, shards, number))

    def select(self, positions: Any) -> Dataset:
        """The elements at these positions, in this order; a position may come more than once.

        It needs random access, and keeps it: only these elements are computed.

        Args:
            positions: Integers from 0 to `len(dataset) - 1`: a list, an array or a range.

        >>> dataset = Dataset.range(10).map(lambda x: x * x)
        >>> print(*dataset.select([3, 1, 1]))
        9 1 1
        >>> order = np.random.default_rng(0).permutation(len(dataset))
        >>> train, validation = dataset.select(order[:8]), dataset.select(order[8:])
        >>> len(train), len(validation)
        (8, 2)
        """
        where = "Dataset.select"
        if self._plan.blocked is not None:
            raise FailedPreconditionError(
                f"{where}: needs random access, which this dataset lacks because of "
                f"{self._plan.blocked}; select before that operator, or use filter"
            )
        chosen = check.positions(where, positions, self._plan.cardinality)
        return Dataset(table_plans.plan_positions(self._plan, chosen))

    def enumerate(self, start: int = 0, name: str | None = None) -> Dataset:
        """Pairs of a number, from `start` on, and an element.

        >>> [(int(i), x) for i, x in Dataset.from_tensor_slices(["a", "b"]).enumerate(1)]
        [(1, b'a'), (2, b'b')]
        """
        first = check.integer("Dataset.enumerate", "start", start)
        return Dataset(nodes.Enumerate(self._plan, first))

    def unique(self, name: str | None = None) -> Dataset:
        """Every value once, where it comes first; for integers and strings, also arrays of them.

        >>> print(*Dataset.from_tensor_slices([1, 37, 2, 37, 2, 1]).unique())
        1 37 2
        """
        spec = known_spec(self._plan)
        if spec is not None:
            element_specs.check_unique("Dataset.unique", spec)
        return Dataset(nodes.Unique(self._plan))

    # Merging

    @staticmethod
    def zip(*args: Any, datasets: Any = None, name: str | None = None) -> Dataset:
        """One element of each dataset, in the structure that the datasets are given in.

        >>> [tuple(map(int, pair)) for pair in Dataset.zip(Dataset.range(2), Dataset.range(5, 9))]
        [(0, 5), (1, 6)]
        """
        where = "Dataset.zip"
        if bool(args) == (datasets is not None):
            raise InvalidTypeError(f"{where}: needs datasets, either as arguments or by keyword")
        given = args[0] if len(args) == 1 else args
        if not args:
            given = datasets
        leaves, tree = nest.flatten(given)
        for leaf in leaves:
            if isinstance(leaf, list):
                raise InvalidTypeError(f"{where}: a list is not a structure; use a tuple")
        parts = tuple(check.plan_of(where, "every part", leaf) for leaf in leaves)
        if not parts:
            raise InvalidArgumentError(f"{where}: needs at least one dataset, got {given!r}")
        return Dataset(parts[0] if tree == nest.LEAF else nodes.Zip(parts, tree))

    def concatenate(self, dataset: Dataset, name: str | None = None) -> Dataset:
        """The elements of this dataset, then those of another.

        >>> print(*Dataset.range(2).concatenate(Dataset.range(7, 9)))
        0 1 7 8
        """
        where = "Dataset.concatenate"
        if check.is_dataset(name):
            raise InvalidTypeError(
                f"{where}: name must be a str, got a Dataset; concatenate one dataset at a time"
            )
        other = check.plan_of(where, "dataset", dataset)
        element_specs.check_alike(where, [self._plan, other])
        return Dataset(nodes.concatenate(self._plan, other))

    @staticmethod
    def choose_from_datasets(
        datasets: Sequence[Dataset], choice_dataset: Dataset, stop_on_empty_dataset: bool = True
    ) -> Dataset:
        """Elements of several datasets; each number in `choice_dataset` selects the next dataset.

        Args:
            datasets: The datasets to choose from.
            choice_dataset: Numbers (int64) of datasets.
            stop_on_empty_dataset: Whether the end of one is the end of all; if not, choices of a
                dataset that has ended are skipped.

        >>> ones, twos = Dataset.from_tensors(1).repeat(), Dataset.from_tensors(2).repeat()
        >>> print(*Dataset.choose_from_datasets([ones, twos], Dataset.range(2).repeat(2)))
        1 2 1 2
        """
        where = "Dataset.choose_from_datasets"
        parts = check.plans_of(where, datasets)
        choice = check.plan_of(where, "choice_dataset", choice_dataset)
        spec = known_spec(choice)
        if spec is not None:
            element_specs.check_choice(where, spec)
        element_specs.check_alike(where, parts)
        stop = check.flag(where, "stop_on_empty_dataset", stop_on_empty_dataset)
        return Dataset(nodes.Choose(choice, tuple(parts), stop))

    @staticmethod
    def sample_from_datasets(
        datasets: Sequence[Dataset],
        weights: Any = None,
        seed: int | None = None,
        stop_on_empty_dataset: bool = False,
        rerandomize_each_iteration: bool | None = None,
    ) -> Dataset:
        """Elements of several datasets, each time from one drawn at random.

        Args:
            datasets: The datasets to draw from; each keeps its own order.
            weights: How likely each is: a list of floats, or a dataset of them. Equal if None.
            seed: The seed of the drawing.
            stop_on_empty_dataset: Whether the end of one is the end of all.
            rerandomize_each_iteration: Whether every iteration draws other numbers.

        >>> a, b = Dataset.range(3), Dataset.range(10, 13)
        >>> sorted(map(int, Dataset.sample_from_datasets([a, b], seed=1)))
        [0, 1, 2, 10, 11, 12]
        """
        where = "Dataset.sample_from_datasets"
        parts = check.plans_of(where, datasets)
        stop = check.boolean(where, "stop_on_empty_dataset", stop_on_empty_dataset)
        again = check.flag(where, "rerandomize_each_iteration", rerandomize_each_iteration)
        key = check.seed(where, seed)
        choice: Node
        if check.is_dataset(weights):
            words = Dataset(nodes.Random(key, again, drawn=seed is None))
            choice = Dataset.zip(weights, words).map(sampling.pick)._plan
        else:
            shares = sampling.check_weights(where, weights, len(parts))
            parts = [part for part, share in zip(parts, shares, strict=True) if share > 0] or [
                nodes.Take(parts[0], 0)
            ]
            if len(parts) == 1:
                return Dataset(parts[0])
            shares = [share for share in shares if share > 0]
            choice = nodes.Choices(tuple(shares), key, again, drawn=seed is None)
        element_specs.check_alike(where, parts)
        return Dataset(nodes.Choose(choice, tuple(parts), stop))

    @staticmethod
    def mix(
        datasets: dict[str, tuple[Dataset, float]], on_end: str | dict[str, str] = "stop"
    ) -> Dataset:
        """Elements of several datasets in exact proportions: none is drawn at random.

        After every n elements, each dataset has given n times its share of the weights, rounded up
        or down. `sample_from_datasets` draws at random instead.

        A state may be loaded into a mix with other weights. Every dataset then continues where it
        was, and the proportions are counted from there. A weight
        may be 0. `Iterator.profile().drawn` says what was drawn.

        Args:
            datasets: (dataset, weight) by name; elements have one structure.
            on_end: What happens when it is the turn of a dataset that has ended: "stop" ends the
                mix, "repeat" begins a new epoch of that dataset, "drop" continues with the other
                datasets in their proportions. One for all, or a dict by name.

        >>> web, books = Dataset.range(100), Dataset.range(1000, 1003)
        >>> mixed = Dataset.mix({"web": (web, 0.7), "books": (books, 0.3)}, on_end="repeat")
        >>> print(*mixed.take(10))
        0 1 1000 2 3 1001 4 5 6 1002
        """
        where = "Dataset.mix"
        names, parts, weights = sampling.check_mixture(where, datasets)
        element_specs.check_alike(where, parts)
        ends = sampling.check_ends(where, on_end, names)
        return Dataset(nodes.Mix(parts, names=names, weights=weights, on_end=ends))

    # Buffering

    def prefetch(self, buffer_size: int | None, name: str | None = None) -> Dataset:
        """The elements, made in the background, up to `buffer_size` ahead of the caller.

        Args:
            buffer_size: How many; AUTOTUNE (or None) finds a number, 0 makes none ahead.

        >>> print(*Dataset.range(3).prefetch(2))
        0 1 2
        """
        where = "Dataset.prefetch"
        size = AUTOTUNE if buffer_size is None else check.integer(where, "buffer_size", buffer_size)
        if size < AUTOTUNE:
            raise InvalidArgumentError(
                f"{where}: buffer_size must be at least 0, or AUTOTUNE (-1), got {size}"
            )
        return Dataset(nodes.Prefetch(self._plan, size))

    def cache(self, filename: Any = "", name: str | None = None) -> Dataset:
        """The elements, kept once the first complete pass has made them.

        Every pass has the order of the first one, also behind a shuffle.

        Args:
            filename: Where to keep them, as an Arrow IPC file; in memory if empty.

        >>> ds = Dataset.range(2).map(lambda x: print("made", x) or x).cache()
        >>> print(*ds, *ds)
        made 0
        made 1
        0 1 0 1
        """
        file = check.path("Dataset.cache", "filename", filename)
        return Dataset(nodes.Cache(self._plan, file, nodes.Store()))

    def snapshot(
        self,
        path: Any,
        compression: str | None = "AUTO",
        reader_func: Call | None = None,
        shard_func: Call | None = None,
        name: str | None = None,
    ) -> Dataset:
        """The elements, kept in a folder once the first complete pass has made them.

        Args:
            path: The folder.
            compression: "AUTO", "GZIP", "NONE" or None.
            reader_func: Gets a dataset of datasets, one per shard, and returns a dataset.
            shard_func: Gets an element and returns the number of its shard.

        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     ds = Dataset.range(3).snapshot(folder)
        ...     print(*ds, *ds)
        0 1 2 0 1 2
        """
        where = "Dataset.snapshot"
        reader, shard = None, None
        if reader_func is not None:
            shards = _dataset_of_datasets([Dataset(self._plan)])
            reader = tracing.reader_function(where, reader_func, shards)
        if shard_func is not None:
            shard = tracing.shard_function(where, shard_func, self._plan)
        packing = None if compression == "AUTO" else compression
        return Dataset(
            nodes.Snapshot(
                self._plan,
                path=check.path(where, "path", path),
                compression=check.compression(where, packing),
                reader=reader,
                shard=shard,
            )
        )

    def with_options(self, options: Options, name: str | None = None) -> Dataset:
        """The elements, with options for the whole plan; where two set one option, the later wins.

        >>> options = Options(deterministic=False)
        >>> Dataset.range(3).with_options(options).options().deterministic
        False
        """
        if not isinstance(options, Options):
            raise NotAConfigError(
                f"Dataset.with_options: options must be an Options, got {check.describe(options)}"
            )
        return Dataset(nodes.WithOptions(self._plan, options.make_frozen()))

    # Results

    def __iter__(self) -> Iterator:
        return Iterator(self._plan, ENVIRONMENT, self._iterations)

    def _deliver(
        self, open_delivery: Callable[[], Delivery], ahead: int, check: Check
    ) -> DeliveredIterator:
        """Iterates over the elements as tensors; see `DeliveredIterator`."""
        return DeliveredIterator(
            self._plan,
            ENVIRONMENT,
            self._iterations,
            open_delivery=open_delivery,
            ahead=ahead,
            check=check,
        )

    def as_numpy_iterator(self) -> NumpyIterator:
        """An iterator whose elements hold only NumPy values and bytes.

        >>> list(Dataset.from_tensor_slices(["a", "b"]).as_numpy_iterator())
        [b'a', b'b']
        """
        element_specs.check_numpy("Dataset.as_numpy_iterator", known_spec(self._plan))
        return NumpyIterator(self._plan, ENVIRONMENT, self._iterations)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return self._slice(index)
        number = check.integer("Dataset[...]", "an index", index)
        count = self._plan.cardinality
        if number < 0:
            number += self._length(f"Dataset[{number}]")
        if number < 0 or 0 <= count <= number:
            raise OutOfRangeError(f"Dataset[{index}]: there are {count} elements")
        try:
            read = self._access if self._plan.blocked is None else self._reach(index, number)
            return read(range(number, number + 1), (0,)).elements()[0]
        except OpError as error:
            raise fold(error, unless="PENSTOCK_TRACEBACK=full") from error.__cause__

    def _reach(self, index: Any, number: int) -> Access:
        """The access to one element of a plan that streams can only read in order."""
        plan = by_index.plan_by_index(self._plan, Dataset)
        if plan.blocked is not None:
            obstacle = next(one for one in nodes.walk_plan(plan) if one.obstacle is not None)
            is_uneven = isinstance(obstacle, nodes.Unbatch)
            kind = FailedPreconditionError if is_uneven else UnimplementedError
            raise kind(
                f"Dataset[{index}]: this plan has no random access ({plan.blocked}); "
                "iterate over it, or index before that step"
            )
        if 0 <= plan.cardinality <= number:
            text = f"Dataset[{index}]: there are only {plan.cardinality} elements"
            if self._plan.cardinality < 0:
                raise OutOfRangeError(text)
            raise FailedPreconditionError(text)
        return read_with_cache(access(plan, _spec_of), nodes.options_of(self._plan))

    @functools.cached_property
    def _access(self) -> Access:
        return read_with_cache(access(self._plan, _spec_of), nodes.options_of(self._plan))

    def _slice(self, part: slice) -> Dataset:
        where = f"Dataset[{part.start or ''}:{part.stop if part.stop is not None else ''}]"
        step = 1 if part.step is None else check.integer(where, "step", part.step, at_least=1)
        start, stop = (
            None if end is None else check.integer(where, "an index", end)
            for end in (part.start, part.stop)
        )
        if (start or 0) < 0 or (stop or 0) < 0:
            start, stop, _ = slice(start, stop).indices(self._length(where))
        result = self if not start else self.skip(start)
        if stop is not None:
            result = result.take(max(0, stop - (start or 0)))
        return result if step == 1 else Dataset(nodes.Shard(result._plan, step, 0))

    def _length(self, where: str) -> int:
        count = self._plan.cardinality
        if count == INFINITE:
            raise InvalidTypeError(f"{where}: the dataset is infinite, so it has no length")
        if count == UNKNOWN:
            raise InvalidTypeError(
                f"{where}: the length is not known before all elements are made; count them with "
                "reduce, or state it with data.experimental.assert_cardinality"
            )
        return count

    def __len__(self) -> int:
        where = "len(Dataset)"
        count = self._length(where)
        if count > sys.maxsize:
            raise InvalidTypeError(
                f"{where}: {count} elements are more than len() can return; use cardinality()"
            )
        return count

    def __bool__(self) -> bool:
        return True

    def cardinality(self, name: str | None = None) -> np.int64:
        """How many elements: a number, INFINITE_CARDINALITY or UNKNOWN_CARDINALITY.

        >>> print(Dataset.range(5).batch(2).cardinality(), Dataset.range(5).repeat().cardinality())
        3 -1
        """
        return np.int64(min(self._plan.cardinality, _MOST))

    @property
    def element_spec(self) -> Any:
        """The structure, dtypes and shapes of an element.

        Where they depend on a function, it is called on the first two elements and, if their shapes
        are not fully known, on a shortened one: up to three calls per operator, once.

        >>> Dataset.range(5).batch(2).element_spec
        TensorSpec(shape=(None,), dtype=tf.int64, name=None)
        """
        try:
            return _spec_of(self._plan)
        except OpError as error:
            raise fold(error, unless="PENSTOCK_TRACEBACK=full") from error.__cause__

    def reduce(self, initial_state: Any, reduce_func: Call, name: str | None = None) -> Any:
        """The state after all elements.

        Args:
            initial_state: A value or structure; its dtypes stay, its shapes may change.
            reduce_func: Gets (state, element) and returns the next state.

        >>> print(Dataset.range(5).reduce(np.int64(0), lambda state, x: state + x))
        10
        """
        where = "Dataset.reduce"
        calls = Calls("reduce", check_function(where, reduce_func, 2, "the state and the element"))
        state = copy_unowned(check.element(where, initial_state))
        try:
            with contextlib.closing(iter(self)) as elements:
                for number, element in enumerate(elements):
                    state = check_state(calls.where, state, calls.plain(number, state, element))
        except OpError as error:
            raise fold(error, unless="PENSTOCK_TRACEBACK=full") from error.__cause__
        return state

    def get_single_element(self, name: str | None = None) -> Any:
        """The element of a dataset that has exactly one.

        >>> print(Dataset.range(5).batch(5).get_single_element())
        [0 1 2 3 4]
        """
        with contextlib.closing(iter(self.take(2))) as elements:
            found = list(elements)
        if len(found) != 1:
            many = "none" if not found else "more than one"
            raise InvalidArgumentError(
                f"Dataset.get_single_element: there must be exactly one element, there is {many}"
            )
        return found[0]

    def apply(self, transformation_func: Callable[[Dataset], Dataset]) -> Dataset:
        """The result of a function of this dataset.

        >>> print(*Dataset.range(9).apply(lambda ds: ds.take(2)))
        0 1
        """
        where = "Dataset.apply"
        if not callable(transformation_func):
            raise InvalidTypeError(
                f"{where}: needs a function, got {check.describe(transformation_func)}"
            )
        made = transformation_func(self)
        tracing.check_dataset(where, Function(transformation_func), made)
        return made

    def save(
        self,
        path: Any,
        compression: str | None = None,
        shard_func: Call | None = None,
        checkpoint_args: Any = None,
    ) -> None:
        """Writes all elements into a folder, for `load`; replaces a dataset that was saved there.

        The folder has an Arrow IPC file for each shard, `*/*.shard/*.snapshot`.

        Args:
            path: The folder.
            compression: None, "NONE" or "GZIP".
            shard_func: Gets an element and returns the number of its shard.
            checkpoint_args: A dict of arguments for a `CheckpointManager`, as `directory` and
                `max_to_keep`: the same save continues there if it was interrupted, and does
                nothing if it was complete. After each element a checkpoint is written; with a
                `step_counter`, after every `checkpoint_interval` elements.

        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     Dataset.range(3).save(folder, compression="GZIP")
        ...     print(*Dataset.load(folder, compression="GZIP"))
        0 1 2
        """
        where = "Dataset.save"
        folder = check.path(where, "path", path)
        packing = check.compression(where, compression)
        calls = None
        if shard_func is not None:
            calls = Calls("save", tracing.shard_function(where, shard_func, self._plan))

        def shard_from(first: int) -> saved.Shard | None:
            numbers = itertools.count(first)
            return None if calls is None else lambda element: calls.one(element, next(numbers))

        if checkpoint_args is not None:
            checkpoints.save_elements(
                folder,
                Iterator(self._plan, ENVIRONMENT, self._iterations),
                lambda before: saved.RunWriter(
                    folder,
                    packing,
                    shard_from(sum(count for _, count in before["counts"]) if before else 0),
                    where,
                    spec=self.element_spec,
                    before=before,
                ),
                checkpoints.check_save_arguments(folder, checkpoint_args),
            )
            return
        shard = shard_from(0)
        with contextlib.closing(self._chunks()) as chunks:
            saved.save(folder, chunks, spec=self.element_spec, compression=packing, shard=shard)

    def _chunks(self) -> Generator[Chunk, None, None]:
        context = Context(
            ENVIRONMENT,
            epoch=(self._iterations.begin(),),
            key=seeds.draw(),
            options=nodes.options_of(self._plan),
        )
        yield from chunks_of(self._plan, context)

    def options(self) -> Options:
        """The options of the whole plan; they cannot be changed, only overridden by `with_options`.

        >>> print(Dataset.range(3).options().deterministic)
        None
        """
        return nodes.options_of(self._plan).make_frozen()

    def fingerprint(self) -> np.uint64:
        """A number that is the same for the same plan, in every process.

        >>> Dataset.range(5).fingerprint() == Dataset.range(5).fingerprint()
        np.True_
        """
        return np.uint64(codec.fingerprint(self._plan))

    def explain(self) -> str:
        """The plan, the optimised plan, and which parts have random access, as a text.

        >>> "batch" in Dataset.range(5).batch(2).explain()
        True
        """
        return show.explain(self._plan)

    def peek(self, count: int = 1) -> list[Any]:
        """The first elements, in a list; fewer if there are no more.

        >>> Dataset.range(10).batch(4).peek(2)
        [array([0, 1, 2, 3]), array([4, 5, 6, 7])]
        """
        return inspection.peek(self, check.integer("Dataset.peek", "count", count, 0))

    def diff(self, other: Dataset) -> str:
        """Where two datasets first differ, in words; empty if they are equal.

        >>> print(Dataset.range(5).diff(Dataset.range(5).map(lambda x: x * (x != 3))))
        element 3 is 3 in the first dataset, 0 in the second
        >>> Dataset.range(5).diff(Dataset.range(5))
        ''
        """
        return inspection.find_difference(self, other)

    def benchmark(self, seconds: float = 3.0) -> inspection.Benchmark:
        """Reads the dataset for at most `seconds`, and measures how fast that was.

        >>> found = Dataset.range(1000).batch(10).benchmark(seconds=0.5)
        >>> found.elements
        100
        """
        return inspection.benchmark(self, seconds)

    # Frameworks

    @explain_arguments
    def as_torch(
        self, device: Any = None, pin_memory: bool | None = None, num_workers: int | None = None
    ) -> Any:
        """The elements as torch tensors, in a `torch.utils.data.IterableDataset`.

        Each tensor can be written to and shares its memory with nothing else. Strings stay bytes,
        and ragged values `Ragged`: `torch.nested.nested_tensor_from_jagged` takes their parts.
        Iterators have `state_dict` and `load_state_dict`, and so has what this returns: trainers
        that iterate by themselves, such as Lightning's, save the position with the model.

        In a `DataLoader(..., batch_size=None, num_workers=n)` each worker process reads every n-th
        element. Without random access (see `explain`) it computes the other elements, too. Workers
        derive the epoch from torch's seed, so the order depends on `torch.manual_seed` and on the
        seeds of this dataset. Ranks of torch.distributed all read the same: let them share a job
        of a service (`service.distribute` with a `job_name`), or use `shard`.

        Args:
            device: The device of the tensors, for example `"cuda:0"`; main memory if None. Copies
                to a GPU run ahead of their use. Not for worker processes.
            pin_memory: Whether tensors go through (or stay in) pinned memory, which a GPU reads
                directly; if None, only if the device is a GPU.
            num_workers: How many processes call the functions of `map` (not vectorized ones), in
                place of every `num_parallel_calls`; with the same elements in the same order. 0
                calls them in this process. If None, `Options.executor` decides. Processes have
                copies of what a function captures: see `map`.

        >>> for features, label in Dataset.from_tensor_slices(([[1, 2]], [0])).as_torch():
        ...     print(features, label)
        tensor([1, 2], dtype=torch.int32) tensor(0, dtype=torch.int32)
        """
        adapter = adapters.load("Dataset.as_torch", "torch")
        return adapter.adapt(self, device, pin_memory, num_workers)

    def as_jax(self, sharding: Any = None) -> DeliveredIterator:
        """An iterator over the elements as JAX arrays, two of them copied ahead.

        JAX narrows int64 and float64 unless `jax_enable_x64` is set. Strings stay bytes, ragged
        values `Ragged`. The iterator has `state_dict` and `load_state_dict`.

        Args:
            sharding: A `jax.Device`, or a `jax.sharding.Sharding` such as
                `NamedSharding(mesh, PartitionSpec("batch"))`, which splits every array: each
                device gets its rows. Where it covers several processes, each of them contributes
                its rows, and all must read the same number of batches of one size. JAX chooses a
                device if None.

        >>> [batch for batch in Dataset.range(4).batch(2).as_jax()]
        [Array([0, 1], dtype=int32), Array([2, 3], dtype=int32)]
        """
        made: DeliveredIterator = adapters.load("Dataset.as_jax", "jax").adapt(self, sharding)
        return made

    def as_keras(self, steps_per_epoch: int | None = None) -> Any:
        """The batches for `fit`, `evaluate`, `predict` of Keras 3, on its jax and torch backends.

        An element is x, (x, y) or (x, y, sample_weight), where each may be a structure. An epoch is
        one pass, shuffled as the dataset says. Where `cardinality` is unknown, so is the total of
        the progress bar, and Keras may warn at the end of an epoch that the input ran out. Weights
        of classes belong in the elements: Keras ignores `class_weight` here.

        A callback saves the position: `state_dict(batch)` in its `on_train_batch_end`. After
        `load_state_dict`, the first epoch of `fit` is the rest of the saved epoch.

        Args:
            steps_per_epoch: How many batches make an epoch. Each epoch continues where the last one
                ended; the dataset repeats. An infinite dataset needs this argument.

        >>> def train(model, dataset):
        ...     model.fit(x=dataset.as_keras(), epochs=3)
        >>> Dataset.range(9).repeat().batch(3).as_keras()
        Traceback (most recent call last):
        penstock.errors.InvalidArgumentError: Dataset.as_keras: the dataset is infinite; say ...
        """
        return adapters.load("Dataset.as_keras", "keras").adapt(self, steps_per_epoch)

    def to_ray(self, num_blocks: int | None = None) -> Any:
        """The elements as a `ray.data.Dataset`, whose blocks tasks of Ray compute.

        Elements are dicts of columns, or single values, which become the column "item". Strings
        are bytes; leaves of different shapes are objects of Python. Rows have the order of this
        dataset if `preserve_order` is set in the options of Ray Data.

        Args:
            num_blocks: How many tasks compute it, at most; by default two for each CPU. A plan
                that cannot be divided (see `explain`) is computed by one.

        >>> def write(dataset, path):
        ...     dataset.to_ray().write_parquet(path)
        >>> Dataset.range(3).map(lambda x: (x, x)).to_ray()
        Traceback (most recent call last):
        penstock.errors.InvalidArgumentError: Dataset.to_ray: elements must be dicts of columns, ...
        """
        return adapters.load("Dataset.to_ray", "ray").adapt(self, num_blocks)

    @property
    def __plan__(self) -> Node:
        return self._plan

    def __reduce__(self) -> tuple[Any, ...]:
        return _from_bytes, (codec.encode(self._plan),)

    def __leaf_spec__(self) -> TypeSpec:
        return DatasetSpec(self.element_spec)

    def __repr__(self) -> str:
        spec = known_spec(self._plan)
        shown = "" if spec is None else f", element_spec={spec}"
        return f"<Dataset {show.title(self._plan)}, {show.count(self._plan)}{shown}>"

    def _repr_svg_(self) -> str:
        """The plan as a picture, which notebooks show."""
        return show.draw_plan(self._plan)

    if not TYPE_CHECKING:  # A type checker knows the names, and would take any other one, too.

        def __getattr__(self, name: str) -> NoReturn:
            asker = sys._getframe(1).f_globals.get("__name__", "")
            raise missing_from_dataset(name, _names_of(type(self)), asker)


@functools.cache
def _names_of(kind: type) -> tuple[str, ...]:
    return tuple(dir(kind))


def _from_bytes(plan: bytes) -> Dataset:
    return Dataset(codec.decode(plan))


def _dataset_of_datasets(parts: list[Dataset]) -> Dataset:
    return Dataset(nodes.Slices(Data(Chunk(nest.LEAF, [parts], len(parts)))))


def _spec_of(plan: Node) -> Any:
    return specs.spec_of(plan, ENVIRONMENT)


def _connect(node: Node, state: State, context: Context) -> Stream:
    # The service is heavy; only distributed datasets need it.
    from penstock.service.host.connect import connect

    return connect(node, state, context)


register_schemes()  # Here, because every process that reads or serves datasets imports this module.

ENVIRONMENT = Environment(wrap=Dataset, spec=_spec_of, connect=_connect)
"""How the engine wraps plans as datasets, infers specs and connects to services."""
