"""`Example` and its parts: messages with the interface of protobuf's, over our own writer.

A message is made of its parts, or filled step by step:
`example.features.feature["x"].int64_list.value.append(1)`. A part that was given or has content
is written and printed, also an empty one; a part that was only looked at is not.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

import numpy as np

from penstock.element.strings import bytes_of
from penstock.engine.formats.examples.reading import (
    Kind,
    MalformedError,
    MessageCursor,
    Values,
    read_entries,
    read_feature,
    read_list,
)
from penstock.engine.formats.examples.wire import FIRST, SECOND
from penstock.engine.formats.examples.writing import (
    decode_list,
    encode_example,
    encode_feature,
    encode_features,
    encode_list,
    encode_lists,
    encode_sequence_example,
    encode_steps,
)
from penstock.errors import InvalidArgumentError, InvalidTypeError
from penstock.tf.values import Tensor, plain_leaf, to_array


class _SerializedMessage(ABC):
    """What all messages share: their bytes."""

    @abstractmethod
    def SerializeToString(self, deterministic: bool | None = None) -> bytes:  # noqa: N802
        """The bytes of the message, as protobuf writes them."""

    def ParseFromString(self, serialized: Any) -> int:  # noqa: N802
        """Replaces the content by what the bytes say, and returns their number."""
        data = serialized.numpy() if isinstance(serialized, Tensor) else serialized
        try:
            self._read(bytes(data))
        except MalformedError as error:
            raise InvalidArgumentError(f"{type(self).__name__}: cannot be read: {error}") from None
        return len(data)

    @abstractmethod
    def _read(self, data: bytes) -> None:
        """Replaces the content by what the bytes say."""

    @classmethod
    def FromString(cls, serialized: Any) -> Any:  # noqa: N802
        """A message of its bytes."""
        message = cls()
        message.ParseFromString(serialized)
        return message

    def MergeFromString(self, serialized: Any) -> int:  # noqa: N802
        """Adds what the bytes say: values to lists, and entries to maps."""
        data = serialized.numpy() if isinstance(serialized, Tensor) else serialized
        self.ParseFromString(self.SerializeToString() + bytes(data))
        return len(data)

    def MergeFrom(self, other: Any) -> None:  # noqa: N802
        """Adds what another message says."""
        self.MergeFromString(self._same_kind("MergeFrom", other).SerializeToString())

    def CopyFrom(self, other: Any) -> None:  # noqa: N802
        """Replaces the content by that of another message."""
        self.ParseFromString(self._same_kind("CopyFrom", other).SerializeToString())

    def _same_kind(self, call: str, other: Any) -> Any:
        if type(other) is not type(self):
            raise InvalidTypeError(
                f"{type(self).__name__}.{call}: needs a message of its kind, got {other!r:.60}"
            )
        return other

    def Clear(self) -> None:  # noqa: N802
        """Removes the content."""
        self.ParseFromString(b"")

    def ByteSize(self) -> int:  # noqa: N802
        """The number of bytes of the message."""
        return len(self.SerializeToString())

    def IsInitialized(self) -> bool:  # noqa: N802
        """True: no field is required."""
        return True

    @abstractmethod
    def __repr__(self) -> str:
        """The content in protobuf's text format."""

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and (other.SerializeToString() == self.SerializeToString())

    __hash__ = object.__hash__


def _part(kind: type[Any], given: Any) -> Any:
    """A part of a message: of its kind, or made of a dict of its fields."""
    if type(given) is kind or isinstance(given, kind):
        return given
    if not isinstance(given, dict):
        raise InvalidTypeError(
            f"{kind.__name__}: needs a message of its kind or a dict of its fields, got "
            f"{given!r:.60}"
        )
    fields = inspect.signature(kind).parameters
    if wrong := [name for name in given if name not in fields]:
        raise InvalidArgumentError(
            f"{kind.__name__}: has no field {wrong[0]!r:.40}; its fields are {', '.join(fields)}"
        )
    return kind(**given)


class NumberList(list[Any]):
    """The numbers of a message, of which NumPy makes an array of the message's dtype."""

    def __init__(self, values: Iterable[Any], dtype: type[np.generic]) -> None:
        super().__init__(values)
        self._dtype = dtype

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        return np.array(list(self), self._dtype if dtype is None else dtype)

    def __reduce__(self) -> tuple[Any, ...]:
        return NumberList, (list(self), self._dtype)


class _ValueList(_SerializedMessage):
    """A list of values of one kind, which are checked when it is made and when it is written."""

    kind: ClassVar[Kind]
    types: ClassVar[tuple[type, ...]]
    allowed: ClassVar[frozenset[type]]
    dtype: ClassVar[type[np.generic] | None] = None
    """The dtype of numbers; None for strings."""

    def __init_subclass__(cls) -> None:
        cls.allowed = frozenset(cls.types)

    def __init__(self, value: Iterable[Any] = ()) -> None:
        if isinstance(value, str | bytes):
            raise InvalidTypeError(
                f"{type(self).__name__}: value must be a list, got {value!r:.40}"
            )
        if isinstance(value, Tensor):
            value = to_array(value).ravel()
        is_row = isinstance(value, np.ndarray) and value.ndim == 1
        given = value.tolist() if is_row else list(value)  # type: ignore[attr-defined]
        self.value: list[Any] = given if self.dtype is None else NumberList(given, self.dtype)
        self.check()

    def check(self) -> None:
        """Converts NumPy's values to Python's; raises if a value has the wrong type."""
        if not self.types_ok():
            self.value[:] = [_plain(one) for one in self.value]
            if not self.types_ok():
                raise InvalidTypeError(
                    f"{type(self).__name__}: value must hold {self.types[0].__name__}, "
                    f"got {self.value!r:.60}"
                )

    def types_ok(self) -> bool:
        return self.allowed.issuperset(map(type, self.value))

    def as_values(self) -> Values:
        self.check()
        return Values(self.kind, self.as_array())

    @abstractmethod
    def as_array(self) -> Any:
        """The values as they are written."""

    def SerializeToString(self, deterministic: bool | None = None) -> bytes:  # noqa: N802
        return encode_list(self.as_values())

    def _read(self, data: bytes) -> None:
        found = decode_list(self.kind, data)
        self.value[:] = [] if found is None else found.values.tolist()

    def MergeFromString(self, serialized: Any) -> int:  # noqa: N802
        more = type(self)()
        size = more.ParseFromString(serialized)
        self.value.extend(more.value)
        return size

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and other.value == self.value

    __hash__ = object.__hash__

    def __repr__(self) -> str:
        self.check()
        return _format_values(self.as_array().tolist())


def _plain(value: Any) -> Any:
    if isinstance(value, Tensor):
        value = plain_leaf(value)
    return value.item() if isinstance(value, np.generic) else value


class BytesList(_ValueList):
    """Strings of bytes."""

    kind = Kind.BYTES
    types = (bytes,)

    def as_array(self) -> Any:
        return self.value

    def __repr__(self) -> str:
        self.check()
        return _format_values(self.value)


class FloatList(_ValueList):
    """Floats of 32 bits."""

    kind = Kind.FLOAT
    types = (float, int, bool)
    dtype = np.float32

    def __init__(self, value: Iterable[Any] = ()) -> None:
        super().__init__(value)
        self.value[:] = self.as_array().tolist()

    def as_array(self) -> Any:
        with np.errstate(over="ignore"):
            return np.array(list(self.value), np.float32)


class Int64List(_ValueList):
    """Integers of 64 bits."""

    kind = Kind.INT64
    types = (int, bool)
    dtype = np.int64

    def as_array(self) -> Any:
        try:
            return np.array(list(self.value), np.int64)
        except OverflowError as error:
            raise InvalidArgumentError(f"Int64List: {error}") from None


_LISTS: dict[str, type[_ValueList]] = {
    "bytes_list": BytesList,
    "float_list": FloatList,
    "int64_list": Int64List,
}


class TrainFeature(_SerializedMessage):
    """One of three lists: `bytes_list`, `float_list` or `int64_list`."""

    def __init__(
        self,
        bytes_list: BytesList | dict[str, Any] | None = None,
        float_list: FloatList | dict[str, Any] | None = None,
        int64_list: Int64List | dict[str, Any] | None = None,
    ) -> None:
        self._lists: dict[str, _ValueList] = {}
        self._offered: dict[str, _ValueList] = {}
        if bytes_list is not None:
            self._lists["bytes_list"] = _part(BytesList, bytes_list)
        if float_list is not None:
            self._lists["float_list"] = _part(FloatList, float_list)
        if int64_list is not None:
            self._lists["int64_list"] = _part(Int64List, int64_list)

    def __getattr__(self, name: str) -> _ValueList:
        if name not in _LISTS:
            raise AttributeError(f"tf.train.Feature has no field {name}")
        found = self._lists.get(name) or self._offered.get(name)
        return found or self._offered.setdefault(name, _LISTS[name]())

    def WhichOneof(self, oneof_group: str = "kind") -> str | None:  # noqa: N802
        """The name of the list that is set."""
        return self._set[0] if self._set else None

    def HasField(self, name: str) -> bool:  # noqa: N802
        return self.WhichOneof() == name

    def ClearField(self, name: str) -> None:  # noqa: N802
        """Removes a list."""
        self._lists.pop(name, None)
        self._offered.pop(name, None)

    @property
    def _set(self) -> tuple[str, _ValueList] | None:
        """The list that was filled last, else the list that was given."""
        lists = self._lists
        if self._offered or len(lists) > 1:
            filled = [pair for pair in (lists | self._offered).items() if pair[1].value]
            if filled:
                return filled[-1]
        return next(reversed(lists.items()), None)

    def MergeFromString(self, serialized: Any) -> int:  # noqa: N802
        more, found = TrainFeature.FromString(serialized), self._set
        if more._set is not None:
            name, values = more._set
            before = found[1].value if found is not None and found[0] == name else []
            self._lists, self._offered = {name: type(values)([*before, *values.value])}, {}
        return len(serialized)

    def as_values(self) -> Values | None:
        found = self._set
        return None if found is None else found[1].as_values()

    def SerializeToString(self, deterministic: bool | None = None) -> bytes:  # noqa: N802
        return encode_feature(self.as_values())

    def _read(self, data: bytes) -> None:
        self._lists = _feature_of(read_feature(data, "Feature") if data else None)._lists
        self._offered = {}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TrainFeature) and other._set == self._set

    __hash__ = object.__hash__

    def __repr__(self) -> str:
        found = self._set
        return "" if found is None else _format_block(found[0], repr(found[1]))


class _Entries(dict[str, Any]):
    """The map of a message: a missing entry is made when it is read."""

    def __init__(self, make: type[Any], given: Any = None) -> None:
        super().__init__()
        self._make = make
        for key, value in (given or {}).items():
            self[key if type(key) is str else bytes_of(key).decode()] = _part(make, value)

    def __missing__(self, key: str) -> Any:
        self[key] = self._make()
        return self[key]


class Features(_SerializedMessage):
    """Features by name."""

    def __init__(self, feature: Any = None) -> None:
        self.feature = _Entries(TrainFeature, feature)

    def as_values(self) -> dict[bytes, Values | None]:
        return {name.encode(): one.as_values() for name, one in self.feature.items()}

    def SerializeToString(self, deterministic: bool | None = None) -> bytes:  # noqa: N802
        return encode_features(self.as_values())

    def _read(self, data: bytes) -> None:
        self.feature = _features_of(read_entries(data)).feature

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Features) and other.feature == self.feature

    __hash__ = object.__hash__

    def __repr__(self) -> str:
        return _format_entries("feature", self.feature)


class _Steps(list[TrainFeature]):
    """The features of a list; `add` appends one."""

    def add(self, **lists: Any) -> TrainFeature:
        """Appends a feature with the given list, and returns it."""
        self.append(TrainFeature(**lists))
        return self[-1]


class FeatureList(_SerializedMessage):
    """The features of the steps of a sequence."""

    def __init__(self, feature: Iterable[TrainFeature] = ()) -> None:
        self.feature = _Steps(_part(TrainFeature, one) for one in feature)

    def as_values(self) -> list[Values | None]:
        return [step.as_values() for step in self.feature]

    def SerializeToString(self, deterministic: bool | None = None) -> bytes:  # noqa: N802
        return encode_steps(self.as_values())

    def _read(self, data: bytes) -> None:
        self.feature = _Steps(_feature_of(step) for step in read_list(data))

    def __repr__(self) -> str:
        return "".join(_format_block("feature", repr(step)) for step in self.feature)


class FeatureLists(_SerializedMessage):
    """Lists of features by name."""

    def __init__(self, feature_list: Any = None) -> None:
        self.feature_list = _Entries(FeatureList, feature_list)

    def as_values(self) -> dict[bytes, list[Values | None]]:
        return {name.encode(): one.as_values() for name, one in self.feature_list.items()}

    def SerializeToString(self, deterministic: bool | None = None) -> bytes:  # noqa: N802
        return encode_lists(self.as_values())

    def _read(self, data: bytes) -> None:
        self.feature_list = _lists_of(read_entries(data)).feature_list

    def __repr__(self) -> str:
        return _format_entries("feature_list", self.feature_list)


class _Whole(_SerializedMessage):
    """An example: its parts are messages, each of which may be missing."""

    _given: frozenset[str]
    """The parts that are there even if they are empty."""

    def HasField(self, name: str) -> bool:  # noqa: N802
        """Whether a part was given or has content."""
        return name in self._given or bool(getattr(self, name).as_values())

    def ClearField(self, name: str) -> None:  # noqa: N802
        """Removes a part."""
        self._given -= {name}
        setattr(self, name, type(getattr(self, name))())

    def _values_of(self, name: str) -> Any:
        """What a part holds; None if it is missing."""
        return getattr(self, name).as_values() or ({} if name in self._given else None)

    def _text_of(self, name: str) -> str:
        return _format_block(name, repr(getattr(self, name))) if self.HasField(name) else ""


class Example(_Whole):
    """An example: features by name.

    >>> example = Example(features=Features(feature={"x": TrainFeature(int64_list=Int64List([3]))}))
    >>> Example.FromString(example.SerializeToString()).features.feature["x"].int64_list.value
    [3]
    >>> print(example, end="")
    features {
      feature {
        key: "x"
        value {
          int64_list {
            value: 3
          }
        }
      }
    }
    """

    def __init__(self, features: Features | dict[str, Any] | None = None) -> None:
        self.features = Features() if features is None else _part(Features, features)
        self._given = frozenset(() if features is None else ("features",))

    def SerializeToString(self, deterministic: bool | None = None) -> bytes:  # noqa: N802
        values = self._values_of("features")
        return b"" if values is None else encode_example(values)

    def _read(self, data: bytes) -> None:
        entries, _ = _split(data)
        self.__init__(None if entries is None else _features_of(entries))  # type: ignore[misc]

    def __repr__(self) -> str:
        return self._text_of("features")


class SequenceExample(_Whole):
    """An example with a context and lists of features."""

    def __init__(
        self,
        context: Features | dict[str, Any] | None = None,
        feature_lists: FeatureLists | dict[str, Any] | None = None,
    ) -> None:
        self.context = Features() if context is None else _part(Features, context)
        self.feature_lists = (
            FeatureLists() if feature_lists is None else _part(FeatureLists, feature_lists)
        )
        given = {"context": context, "feature_lists": feature_lists}
        self._given = frozenset(name for name, part in given.items() if part is not None)

    def SerializeToString(self, deterministic: bool | None = None) -> bytes:  # noqa: N802
        return encode_sequence_example(self._values_of("context"), self._values_of("feature_lists"))

    def _read(self, data: bytes) -> None:
        entries, lists = _split(data)
        self.__init__(  # type: ignore[misc]
            None if entries is None else _features_of(entries),
            None if lists is None else _lists_of(lists),
        )

    def __repr__(self) -> str:
        return self._text_of("context") + self._text_of("feature_lists")


_Map = list[tuple[bytes, bytes]]
"""The entries of a map: names and the bytes of messages."""


def _split(data: bytes) -> tuple[_Map | None, _Map | None]:
    """The entries of the two maps of a message; None for a missing map."""
    found: dict[int, _Map] = {}
    cursor = MessageCursor(data)
    while not cursor.has_ended:
        tag = cursor.peek()
        if tag in (FIRST, SECOND):
            cursor.at += 1
            found.setdefault(tag, []).extend(read_entries(cursor.message()))
        else:
            cursor.skip_field()
    return found.get(FIRST), found.get(SECOND)


def _lists_of(entries: _Map) -> FeatureLists:
    return FeatureLists({name.decode(): FeatureList.FromString(one) for name, one in entries})


def _features_of(entries: _Map) -> Features:
    made = {
        name.decode(): _feature_of(read_feature(body, repr(name)) if body else None)
        for name, body in entries
    }
    return Features(made)


def _feature_of(found: Values | None) -> TrainFeature:
    if found is None:
        return TrainFeature()
    name = next(name for name, kind in _LISTS.items() if kind.kind == found.kind)
    return TrainFeature(**{name: _LISTS[name](found.values.tolist())})  # type: ignore[arg-type]


# Messages as text, in protobuf's text format: one line for each value, blocks for messages


def _format_block(name: str, text: str) -> str:
    """A message in a field.

    >>> print(_format_block("int64_list", "value: 1\\n"), end="")
    int64_list {
      value: 1
    }
    """
    inner = "".join(f"  {line}\n" for line in text.split("\n")[:-1])
    return f"{name} {{\n{inner}}}\n"


def _format_entries(name: str, messages: Mapping[str, Any]) -> str:
    """The entries of a map, in its order."""
    return "".join(
        _format_block(
            name, f"key: {_quote(key, keeps=True)}\n{_format_block('value', repr(message))}"
        )
        for key, message in messages.items()
    )


def _format_values(listed: Iterable[Any]) -> str:
    """One line for each value of a list."""
    return "".join(f"value: {_value(one)}\n" for one in listed)


def _value(value: Any) -> str:
    if isinstance(value, bytes):
        return _quote(value.decode("latin-1"), keeps=False)
    return _float(value) if isinstance(value, float) else str(int(value))


def _float(value: float) -> str:
    """A float of 32 bits: with six digits, or with nine where six are not exact."""
    short = f"{value:.6g}"
    return short if np.float32(short) == np.float32(value) or value != value else f"{value:.9g}"


_ESCAPED = {"\n": "\\n", "\r": "\\r", "\t": "\\t", '"': '\\"', "'": "\\'", "\\": "\\\\"}


def _quote(text: str, keeps: bool) -> str:
    """Characters in quotes; those outside of ASCII are octal numbers unless `keeps` is set."""
    return '"' + "".join(_escape(one, keeps) for one in text) + '"'


def _escape(character: str, keeps: bool) -> str:
    code = ord(character)
    if 32 <= code < 127 or (keeps and code > 127):
        return _ESCAPED.get(character, character)
    return _ESCAPED.get(character, f"\\{code:03o}")
