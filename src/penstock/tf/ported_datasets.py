"""Datasets whose functions and loops get tensors.

A `PortedDataset` holds the plan that plain penstock would make. Its methods are those of `Dataset`:
they convert functions and values on the way in, and datasets and values on the way out.
"""

from __future__ import annotations

import functools
import inspect
import threading
from collections import OrderedDict
from collections.abc import Callable
from collections.abc import Iterator as PythonIterator
from itertools import repeat
from operator import length_hint
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import numpy as np

from penstock.data.dataset import ENVIRONMENT, Dataset
from penstock.data.experimental import csv_files
from penstock.data.experimental.csv_files import CsvDataset
from penstock.data.experimental.record_writers import RecordsWriter
from penstock.data.experimental.sql import SqlDataset
from penstock.data.experimental.transformations import Reducer
from penstock.data.file_datasets import FixedLengthRecordDataset, TextLineDataset, TFRecordDataset
from penstock.data.iterator import Iterator
from penstock.distribute.values.variables import Variable
from penstock.element.chunk import Chunk
from penstock.element.columns import Column
from penstock.element.optional import Optional
from penstock.plan import nodes
from penstock.plan.nodes import Node, known_spec
from penstock.tf.drawing import draws_numbers
from penstock.tf.missing_operations import missing_from_tf
from penstock.tf.ported_functions import (
    Ported,
    PortedGenerator,
    PortedKeyed,
    PortedMap,
    PortedRandom,
    set_dataset_class,
    unwrap,
    unwrap_element,
    wrap,
)
from penstock.tf.values import Tensor, as_tensor

_FUNCTIONS = {
    *("map_func", "predicate", "scan_func", "class_func", "key_func", "reduce_func", "length_fn"),
    *("window_size_func", "element_length_func", "reader_func", "shard_func", "reader_fn"),
    "reader",
}
"""The arguments of penstock's calls that are functions of elements."""

_GIVE_VALUES = {
    *("reduce", "get_single_element", "cardinality", "peek", "at", "register_dataset"),
    "fingerprint",
}
_VIEW = np.ndarray.view

_CLASS_NAMES: dict[type[Node], str] = {
    nodes.Slices: "_TensorSliceDataset",
    nodes.FileNames: "_TensorSliceDataset",
    nodes.Tensors: "_TensorDataset",
    nodes.Counter: "_ScanDataset",
    nodes.Generator: "_FlatMapDataset",
    nodes.Saved: "_LoadDataset",
    nodes.RaggedBatch: "_BatchDataset",
    nodes.Enumerate: "_ZipDataset",
    nodes.Choose: "_DirectedInterleaveDataset",
    nodes.Cache: "CacheDataset",
    nodes.Snapshot: "_MapDataset",
    nodes.WithOptions: "_OptionsDataset",
}
"""TensorFlow's classes whose names are not made of those of the nodes."""


class PortedIterator(Iterator):
    """Iterates over tensors."""

    def _elements(self, chunk: Chunk) -> PythonIterator[Any]:
        leaves = len(chunk.columns)
        if leaves > 2 and leaves * chunk.size > _TOGETHER:
            return _Parts(chunk, _TOGETHER // leaves + 1)
        return iter(_wrap_elements(chunk))

    def get_next_as_optional(self) -> Optional:
        found = super().get_next_as_optional()
        return PortedOptional(found._value, found._spec)


class PortedOptional(Optional):
    """An element, or no element: `has_value` and `get_value` return tensors.

    >>> PortedOptional.from_value(3).get_value().numpy()
    np.int32(3)
    """

    __slots__ = ()

    @classmethod
    def from_value(cls, value: Any) -> Optional:
        return super().from_value(unwrap(value))

    def has_value(self, name: str | None = None) -> Any:
        return as_tensor(np.bool_(self._is_full))

    def get_value(self, name: str | None = None) -> Any:
        return wrap(super().get_value(name))


_TOGETHER = 256
"""So many tensors are made at once. Many more would not fit into a cache of the processor."""


class _Parts:
    """The elements of a chunk, of which only some are made at once. Threads may share it."""

    def __init__(self, chunk: Chunk, size: int) -> None:
        self._chunk, self._size = chunk, size
        self._lock = threading.Lock()
        self._at = 0  #: guarded by _lock, as `_part` is
        self._part: PythonIterator[Any] = iter(())

    def __iter__(self) -> _Parts:
        return self

    def __next__(self) -> Any:
        element = next(self._part, _NO_ELEMENT)
        return self._next_of_part() if element is _NO_ELEMENT else element

    def _next_of_part(self) -> Any:
        with self._lock:
            while (element := next(self._part, _NO_ELEMENT)) is _NO_ELEMENT:
                if self._at >= self._chunk.size:
                    raise StopIteration
                part = self._chunk.rows(self._at, self._at + self._size)
                self._part = iter(_wrap_elements(part))
                self._at += part.size
            return element

    def __length_hint__(self) -> int:
        with self._lock:
            return length_hint(self._part) + self._chunk.size - self._at


_NO_ELEMENT = object()


def _wrap_elements(chunk: Chunk) -> list[Any]:
    columns: list[Column] = [_wrap_column(column) for column in chunk.columns]
    return Chunk(chunk.tree, columns, chunk.size).elements()


def _wrap_column(column: Column) -> list[Any]:
    if type(column) is not np.ndarray:
        return [wrap(leaf) for leaf in column]
    if column.ndim > 1:
        return [_VIEW(row, Tensor) for row in column]
    # A bound method and `map`: one call for each value, and no frame of Python.
    one: Any = np.ndarray.__getitem__.__get__(_VIEW(column, Tensor))
    return list(map(one, zip(range(len(column)), repeat(...), strict=False)))


_Call = TypeVar("_Call", bound=Callable[..., Any])


def _with_signature_of(plain: Callable[..., Any]) -> Callable[[_Call], _Call]:
    """A decorator of a class or function: `help` shows the arguments of the plain one."""

    def decorate(ported: _Call) -> _Call:
        ported.__signature__ = inspect.signature(plain)  # type: ignore[attr-defined]
        return ported

    return decorate


class PortedDataset(Dataset):
    """`tf.data.Dataset` for ported code: the same methods, on tensors.

    >>> from penstock import tf
    >>> for x in tf.data.Dataset.range(2).map(lambda x: tf.strings.as_string(x) + "!"):
    ...     print(x.numpy())
    b'0!'
    b'1!'
    """

    _present = staticmethod(wrap)

    def __iter__(self) -> PortedIterator:
        return PortedIterator(self._plan, ENVIRONMENT, self._iterations)

    def __getitem__(self, index: Any) -> Any:
        return _port_result(self._plain[unwrap(index)], value=True)

    @functools.cached_property
    def _plain(self) -> Dataset:
        """This dataset as plain penstock's; both count the same iterations."""
        plain = Dataset(self._plan)
        plain._iterations = self._iterations
        return plain

    @_with_signature_of(Dataset.map)
    def map(self, map_func: Any, *args: Any, **kwargs: Any) -> Any:
        """A function of every element; see `penstock.Dataset.map`.

        Operations of `tf.random` and `tf.image` in it draw as with `random=True`.
        """
        if not kwargs.get("random") and _may_draw(map_func):
            made = self._plain.map(PortedRandom(map_func), *args, **kwargs, random=True)
        else:
            made = self._plain.map(_port_function(map_func, PortedMap), *args, **kwargs)
        return as_ported(made)

    def filter(self, predicate: Any, name: str | None = None) -> Any:
        """The elements for which `predicate` is True; it may draw random numbers, too."""
        if not _may_draw(predicate):
            return as_ported(self._plain.filter(_port_function(predicate)))
        return as_ported(self._map_to_both(predicate).filter(_first).map(_second))

    def take_while(self, predicate: Any, name: str | None = None) -> Any:
        """The elements before the first for which `predicate` is False; it may draw, too."""
        if not _may_draw(predicate):
            return as_ported(self._plain.take_while(_port_function(predicate)))
        return as_ported(self._map_to_both(predicate).take_while(_first).map(_second))

    def scan(self, initial_state: Any, scan_func: Any, name: str | None = None) -> Any:
        """A function of (state, element) to (state, element); it may draw random numbers, too."""
        if not _may_draw(scan_func):
            return as_ported(self._plain.scan(unwrap(initial_state), _port_function(scan_func)))
        keyed = self._plain.map(_PutKeyBefore(self._has_tuples), random=True)
        return as_ported(keyed.scan(unwrap(initial_state), PortedKeyed(scan_func)))

    @_with_signature_of(Dataset.group_by_window)
    def group_by_window(self, key_func: Any, reduce_func: Any, *args: Any, **kwargs: Any) -> Any:
        """Windows of elements with equal keys; `key_func` and `reduce_func` may draw, too."""
        if not callable(reduce_func) or not _may_draw(key_func):
            return as_ported(_group(self._plain, key_func, reduce_func, *args, **kwargs))
        both = self._map_to_both(key_func)
        return as_ported(_group(both, _first, _OfSeconds(reduce_func), *args, **kwargs))

    def _map_to_both(self, function: Any) -> Dataset:
        """Pairs of a function's result, which it may draw by the element, and the element."""
        return self._plain.map(PortedRandom(_KeepBoth(function, self._has_tuples)), random=True)

    @property
    def _has_tuples(self) -> bool:
        """Whether elements are tuples, as far as that is known without a call of a function."""
        return type(known_spec(self._plan)) is tuple

    def apply(self, transformation_func: Callable[[Dataset], Dataset]) -> Any:
        return as_ported(super().apply(transformation_func))

    @staticmethod
    @_with_signature_of(Dataset.from_generator)
    def from_generator(generator: Any, *args: Any, **kwargs: Any) -> Any:
        """The values that a generator yields; see `penstock.Dataset.from_generator`."""
        made = _port_function(generator, PortedGenerator)
        return as_ported(Dataset.from_generator(made, *unwrap(args), **unwrap(kwargs)))

    def __reduce__(self) -> tuple[Any, ...]:
        return as_ported, (self._plain,)

    def __repr__(self) -> str:
        """TensorFlow's text, or plain penstock's if functions fail that the spec needs."""
        try:
            return f"<{self._class_name} element_spec={self.element_spec}>"
        except Exception:
            return super().__repr__()

    @property
    def _class_name(self) -> str:
        """The name of TensorFlow's class for the last operator: `_ParallelMapDataset`."""
        kind = type(self._plan)
        parallel = "Parallel" if getattr(self._plan, "parallel", None) is not None else ""
        return _CLASS_NAMES.get(kind, f"_{parallel}{kind.__name__}Dataset")

    if not TYPE_CHECKING:  # A type checker knows the names, and would take any other one, too.

        def __getattr__(self, name: str) -> NoReturn:
            raise missing_from_tf("data.Dataset", name, dir(type(self)))


def _may_draw(function: Any) -> bool:
    return callable(function) and draws_numbers(function)


def _port_function(given: Any, kind: type[Ported] = Ported) -> Any:
    """A function of tensors for the engine; other values are returned as they are."""
    return kind(given) if callable(given) else given


class _KeepBoth:
    """A function of elements as a function to (result, element)."""

    __wrapped__: Callable[..., Any]

    def __init__(self, function: Callable[..., Any], is_tuple: bool) -> None:
        functools.update_wrapper(self, function, updated=())
        self._is_tuple = is_tuple

    def __call__(self, *parts: Any) -> tuple[Any, Any]:
        return self.__wrapped__(*parts), _join(parts, self._is_tuple)


class _PutKeyBefore:
    """A function of an element and its generator to (key, element), with a key that is drawn."""

    def __init__(self, is_tuple: bool) -> None:
        self._is_tuple = is_tuple

    def __call__(self, *parts: Any) -> tuple[Any, Any]:
        key = parts[-1].integers(np.iinfo(np.int64).max)
        return key, _join(parts[:-1], self._is_tuple)


def _join(parts: tuple[Any, ...], is_tuple: bool) -> Any:
    """The element whose parts a function got."""
    return parts if is_tuple or len(parts) != 1 else parts[0]


class _OfSeconds:
    """The `reduce_func` of a `group_by_window` for windows of pairs, of which it gets a part."""

    __wrapped__: Callable[..., Any]

    def __init__(self, function: Callable[..., Any]) -> None:
        functools.update_wrapper(self, function, updated=())

    def __call__(self, key: Any, window: Any) -> Any:
        return self.__wrapped__(key, window.map(_second))


def _first(keep: Any, element: Any) -> Any:
    return keep


def _second(keep: Any, element: Any) -> Any:
    return element


def as_ported(dataset: Any) -> Any:
    """A dataset whose functions and loops get tensors; other values are returned as they are."""
    if not isinstance(dataset, Dataset) or isinstance(dataset, PortedDataset):
        return dataset
    return PortedDataset(dataset.__plan__)


class PortedVariant(PortedDataset):
    """A dataset in an element, such as a window."""

    _class_name = "_VariantDataset"


def _as_variant(dataset: Any) -> Any:
    return dataset if isinstance(dataset, PortedDataset) else PortedVariant(dataset.__plan__)


set_dataset_class(_as_variant)


def port(function: Callable[..., Any]) -> Callable[..., Any]:
    """A call of penstock that takes functions of tensors, and returns tensors and datasets."""
    signature = inspect.signature(function)
    value = function.__name__ in _GIVE_VALUES

    @functools.wraps(function)
    def call_ported(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        for name, given in bound.arguments.items():
            bound.arguments[name] = _port_argument(name, given)
        return _port_result(function(*bound.args, **bound.kwargs), value)

    return call_ported


def port_transformation(make: Callable[..., Any]) -> Callable[..., Any]:
    """A function that repeats a method of `Dataset` for `apply`: here of `PortedDataset`."""
    method = make.__name__

    @functools.wraps(make)
    def call_ported(*args: Any, **kwargs: Any) -> Callable[[Any], Any]:
        return lambda dataset: getattr(as_ported(dataset), method)(*args, **kwargs)

    return call_ported


def _port_argument(name: str, given: Any) -> Any:
    if name == "self":
        return given._plain if isinstance(given, PortedDataset) else given
    if name in _FUNCTIONS:
        given = _port_function(given)
    if callable(given) or isinstance(given, Iterator):
        return given
    if name == "checkpoint_args" and isinstance(given, dict):
        # `save` counts steps in a variable of the caller, so the variable itself is passed on.
        return {
            key: one if isinstance(one, Variable) else unwrap(one) for key, one in given.items()
        }
    return unwrap_element(given) if name == "tensors" else unwrap(given)


def _port_result(result: Any, value: bool) -> Any:
    if isinstance(result, list):
        return [wrap(one) for one in result]
    return wrap(result) if value else as_ported(result)


_group = port(Dataset.group_by_window)


def _port_methods() -> None:
    """Gives `PortedDataset` the other public methods of `Dataset`."""
    for name, member in vars(Dataset).items():
        if name.startswith("_") or name in vars(PortedDataset):
            continue
        if isinstance(member, staticmethod):
            setattr(PortedDataset, name, staticmethod(port(member.__func__)))
        elif inspect.isfunction(member):
            setattr(PortedDataset, name, port(member))


_port_methods()


class _TakesTensors:
    """The first base of a ported class, whose arguments may be tensors."""

    if not TYPE_CHECKING:  # A type checker shows the arguments of the class that follows.

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*unwrap(args), **unwrap(kwargs))


@_with_signature_of(TFRecordDataset)
class PortedTFRecordDataset(_TakesTensors, TFRecordDataset, PortedDataset):
    """`tf.data.TFRecordDataset`; see `penstock.data.TFRecordDataset`."""

    _class_name = "TFRecordDatasetV2"


@_with_signature_of(TextLineDataset)
class PortedTextLineDataset(_TakesTensors, TextLineDataset, PortedDataset):
    """`tf.data.TextLineDataset`; see `penstock.data.TextLineDataset`."""

    _class_name = "TextLineDatasetV2"


@_with_signature_of(FixedLengthRecordDataset)
class PortedFixedLengthRecordDataset(_TakesTensors, FixedLengthRecordDataset, PortedDataset):
    """`tf.data.FixedLengthRecordDataset`; see `penstock.data.FixedLengthRecordDataset`."""

    _class_name = "FixedLengthRecordDatasetV2"


@_with_signature_of(CsvDataset)
class PortedCsvDataset(_TakesTensors, CsvDataset, PortedDataset):
    """`tf.data.experimental.CsvDataset`; see `penstock.data.experimental.CsvDataset`."""

    _class_name = "CsvDatasetV2"


_read_csv = port(csv_files.make_csv_dataset)


@functools.wraps(csv_files.make_csv_dataset)
def make_csv_dataset(*args: Any, **kwargs: Any) -> Any:
    return as_ported(_read_csv(*args, **kwargs)._plain.map(_put_in_order))


def _put_in_order(features: Any, *labels: Any) -> Any:
    """Columns as the kind of dict that TensorFlow makes of them."""
    ordered = OrderedDict(features)
    return (ordered, *labels) if labels else ordered


@_with_signature_of(SqlDataset)
class PortedSqlDataset(_TakesTensors, SqlDataset, PortedDataset):
    """`tf.data.experimental.SqlDataset`; see `penstock.data.experimental.SqlDataset`."""

    _class_name = "SqlDatasetV2"


@_with_signature_of(RecordsWriter)
class PortedRecordsWriter(_TakesTensors, RecordsWriter):
    """`tf.data.experimental.TFRecordWriter`: its arguments may be tensors."""


class PortedReducer(Reducer):
    """`tf.data.experimental.Reducer`: its functions get tensors."""

    def __init__(self, init_func: Any, reduce_func: Any, finalize_func: Any) -> None:
        super().__init__(*map(_port_function, (init_func, reduce_func, finalize_func)))
