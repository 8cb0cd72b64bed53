"""Lists of integers and strings, decoded by the C parser of protobuf where that is installed.

It only replaces loops: everything is decoded without it, too, and what it does not accept is left
to code that says what is wrong.
"""

from __future__ import annotations

import functools

import numpy as np

from penstock.element.columns import Array
from penstock.engine.formats.examples.wire import FIRST, encode_length

_BLOCK = 4 << 20
"""So many bytes of integers are decoded together."""

_STRINGS, _LISTS, _INTEGERS = "Strings", "Lists", "Integers"


class ProtobufLists:
    """The messages that are parsed, in a pool of their own: names of other programs do not matter.

    `Integers` is the `Int64List` of an example, `Strings` its `BytesList`. `Lists` are features one
    after another: every feature with strings is an entry of a repeated field.
    """

    def __init__(self) -> None:
        from google.protobuf import descriptor_pb2 as schema
        from google.protobuf.descriptor_pool import DescriptorPool
        from google.protobuf.message import DecodeError
        from google.protobuf.message_factory import GetMessageClass

        field = schema.FieldDescriptorProto
        file = schema.FileDescriptorProto(name="penstock_lists.proto", package="penstock_lists")
        for name, kind, message in (
            (_INTEGERS, field.TYPE_INT64, None),
            (_STRINGS, field.TYPE_BYTES, None),
            (_LISTS, field.TYPE_MESSAGE, f".penstock_lists.{_STRINGS}"),
        ):
            file.message_type.add(name=name).field.add(
                name="items", number=1, label=field.LABEL_REPEATED, type=kind, type_name=message
            )
        pool = DescriptorPool()
        pool.Add(file)
        self._integers, self._lists = (
            GetMessageClass(pool.FindMessageTypeByName(f"penstock_lists.{name}"))
            for name in (_INTEGERS, _LISTS)
        )
        self._failure: type[Exception] = DecodeError
        self.makes_arrays = hasattr(self._integers().items, "__array__")
        """Whether lists of integers become arrays at once: since version 7.34."""

    def decode_integers(self, octets: Array, ends: Array) -> Array | None:
        """The varints in `octets`; `ends` says which bytes are the last ones of a varint.

        Returns None if one of them is not complete, or has more than ten bytes.
        """
        values, begin = [], 0
        while begin < len(octets):
            stop = min(begin + _BLOCK, len(octets))
            if stop < len(octets):
                last = ends[stop - 10 : stop].nonzero()[0]
                stop += int(last[-1]) - 9 if len(last) else 0
            head = bytes((FIRST,)) + encode_length(stop - begin)
            try:
                found = self._integers.FromString(b"".join((head, octets[begin:stop].data)))
            except self._failure:
                return None
            values.append(np.asarray(found.items))
            begin = stop
        return values[0] if len(values) == 1 else np.concatenate(values)

    def split_strings(self, features: Array) -> list[list[bytes]] | None:
        """The strings of features one after another; None if something else is between them."""
        try:
            found = self._lists.FromString(features.data)
        except self._failure:
            return None
        lists = [strings.items[:] for strings in found.items]
        found.DiscardUnknownFields()
        return lists if found.ByteSize() == len(features) else None


@functools.cache
def find_protobuf() -> ProtobufLists | None:
    """Protobuf's lists; None if it is not installed, too old, or only its Python part."""
    try:
        from google.protobuf.internal import api_implementation

        return ProtobufLists() if api_implementation.Type() == "upb" else None
    except ImportError:  # Versions before 4.22 lack one of the names.
        return None
