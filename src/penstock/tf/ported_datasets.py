"""Datasets whose functions and loops get tensors.

A `PortedDataset` holds the plan that plain penstock would make. Its methods are those of `Dataset`:
they convert functions and values on the way in, and datasets and values on the way out.
"""

from __future__ import annotations

import functools
import inspect
from collections import OrderedDict
from collections.abc import Callable
from collections.abc import Iterator as PythonIterator
from itertools import repeat
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
from penstock.plan.nodes import known_spec
from penstock.tf.dataset_texts import class_of
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
    *(
        "window_size_func",
        "element_length_func",
        "reader_func",
        "shard_func",
        "reader_fn",
        "reader",
    ),
}
"""The arguments of penstock's calls that are functions of elements."""

_GIVE_VALUES = {
    *("reduce", "get_single_element", "cardinality", "peek", "at", "register_dataset"),
    "fingerprint",
}
_VIEW = np.ndarray.view


class PortedIterator(Iterator):
    """Iterates over tensors."""

    def _elements(self, chunk: Chunk) -> PythonIterator[Any]:
        columns: list[Column] = [_wrap_column(column) for column in chunk.columns]
        return iter(Chunk(chunk.tree, columns, chunk.size).elements())

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
        return _port_result("__getitem__", self._plain[unwrap(index)], value=True)

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
        if callable(map_func) and not kwargs.get("random") and draws_numbers(map_func):
            made = self._plain.map(PortedRandom(map_func), *args, **kwargs, random=True)
            return as_ported(made)
        made = self._plain.map(
            PortedMap(map_func) if callable(map_func) else map_func, *args, **kwargs
        )
        return as_ported(made)

    def filter(self, predicate: Any, name: str | None = None) -> Any:
        """The elements for which `predicate` is True; it may draw random numbers, too."""
        if not callable(predicate) or not draws_numbers(predicate):
            return as_ported(
                self._plain.filter(Ported(predicate) if callable(predicate) else predicate)
            )
        return as_ported(self._map_to_both(predicate).filter(_first).map(_second))

    def take_while(self, predicate: Any, name: str | None = None) -> Any:
        """The elements before the first for which `predicate` is False; it may draw, too."""
        if not callable(predicate) or not draws_numbers(predicate):
            return as_ported(
                self._plain.take_while(Ported(predicate) if callable(predicate) else predicate)
            )
        return as_ported(self._map_to_both(predicate).take_while(_first).map(_second))

    def scan(self, initial_state: Any, scan_func: Any, name: str | None = None) -> Any:
        """A function of (state, element) to (state, element); it may draw random numbers, too."""
        if not callable(scan_func) or not draws_numbers(scan_func):
            function = Ported(scan_func) if callable(scan_func) else scan_func
            return as_ported(self._plain.scan(unwrap(initial_state), function))
        keyed = self._plain.map(_PutKeyBefore(self._has_tuples), random=True)
        return as_ported(keyed.scan(unwrap(initial_state), PortedKeyed(scan_func)))

    @_with_signature_of(Dataset.group_by_window)
    def group_by_window(self, key_func: Any, reduce_func: Any, *args: Any, **kwargs: Any) -> Any:
        """Windows of elements with equal keys; `key_func` and `reduce_func` may draw, too."""
        if not callable(key_func) or not callable(reduce_func) or not draws_numbers(key_func):
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
        made = PortedGenerator(generator) if callable(generator) else generator
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
        return class_of(self._plan)

    if not TYPE_CHECKING:  # A type checker knows the names, and would take any other one, too.

        def __getattr__(self, name: str) -> NoReturn:
            raise missing_from_tf("data.Dataset", name, dir(type(self)))


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
        return _port_result(function.__name__, function(*bound.args, **bound.kwargs), value)

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
    if name in _FUNCTIONS and callable(given):
        return Ported(given)
    if callable(given) or isinstance(given, Iterator):
        return given
    if name == "checkpoint_args" and isinstance(given, dict):
        # `save` counts steps in a variable of the caller, so the variable itself is passed on.
        return {
            key: one if isinstance(one, Variable) else unwrap(one) for key, one in given.items()
        }
    return unwrap_element(given) if name == "tensors" else unwrap(given)


def _port_result(name: str, result: Any, value: bool) -> Any:
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


@_with_signature_of(TFRecordDataset)
class PortedTFRecordDataset(TFRecordDataset, PortedDataset):
    """`tf.data.TFRecordDataset`; see `penstock.data.TFRecordDataset`."""

    _class_name = "TFRecordDatasetV2"

    def __init__(self, filenames: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(unwrap(filenames), *unwrap(args), **unwrap(kwargs))


@_with_signature_of(TextLineDataset)
class PortedTextLineDataset(TextLineDataset, PortedDataset):
    """`tf.data.TextLineDataset`; see `penstock.data.TextLineDataset`."""

    _class_name = "TextLineDatasetV2"

    def __init__(self, filenames: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(unwrap(filenames), *unwrap(args), **unwrap(kwargs))


@_with_signature_of(FixedLengthRecordDataset)
class PortedFixedLengthRecordDataset(FixedLengthRecordDataset, PortedDataset):
    """`tf.data.FixedLengthRecordDataset`; see `penstock.data.FixedLengthRecordDataset`."""

    _class_name = "FixedLengthRecordDatasetV2"

    def __init__(self, filenames: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(unwrap(filenames), *unwrap(args), **unwrap(kwargs))


@_with_signature_of(CsvDataset)
class PortedCsvDataset(CsvDataset, PortedDataset):
    """`tf.data.experimental.CsvDataset`; see `penstock.data.experimental.CsvDataset`."""

    _class_name = "CsvDatasetV2"

    def __init__(self, filenames: Any, record_defaults: Any, *args: Any, **kwargs: Any) -> None:
        defaults = unwrap(record_defaults)
        super().__init__(unwrap(filenames), defaults, *unwrap(args), **unwrap(kwargs))


_read_csv = port(csv_files.make_csv_dataset)


@functools.wraps(csv_files.make_csv_dataset)
def make_csv_dataset(*args: Any, **kwargs: Any) -> Any:
    return as_ported(_read_csv(*args, **kwargs)._plain.map(_put_in_order))


def _put_in_order(features: Any, *labels: Any) -> Any:
    """Columns as the kind of dict that TensorFlow makes of them."""
    ordered = OrderedDict(features)
    return (ordered, *labels) if labels else ordered


class PortedSqlDataset(SqlDataset, PortedDataset):
    """`tf.data.experimental.SqlDataset`; see `penstock.data.experimental.SqlDataset`."""

    _class_name = "SqlDatasetV2"

    def __init__(self, driver_name: Any, data_source_name: Any, query: Any, output_types: Any):
        super().__init__(unwrap(driver_name), unwrap(data_source_name), unwrap(query), output_types)


class PortedRecordsWriter(RecordsWriter):
    """`tf.data.experimental.TFRecordWriter`: its arguments may be tensors."""

    def __init__(self, filename: Any, compression_type: Any = None) -> None:
        super().__init__(unwrap(filename), unwrap(compression_type))


class PortedReducer(Reducer):
    """`tf.data.experimental.Reducer`: its functions get tensors."""

    def __init__(self, init_func: Any, reduce_func: Any, finalize_func: Any) -> None:
        super().__init__(
            *[
                Ported(one) if callable(one) else one
                for one in (init_func, reduce_func, finalize_func)
            ]
        )
