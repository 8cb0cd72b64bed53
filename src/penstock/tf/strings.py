"""`tf.strings`: operations on strings, which are bytes; arrays and ragged rows of them, too."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np

from penstock.element.dtypes import as_dtype
from penstock.element.hashing import fingerprint64, murmur64, sip_hash
from penstock.element.ragged import Ragged
from penstock.element.strings import bytes_of
from penstock.errors import InvalidArgumentError, InvalidTypeError
from penstock.shim import printing
from penstock.tf.missing_operations import refuse_names_of_tf
from penstock.tf.operations import elementwise, map_texts, operation, texts, vector
from penstock.tf.ragged_values import RaggedTensor, group_rows, plain_rows
from penstock.tf.reductions import reduce_join
from penstock.tf.regexes import regex_of
from penstock.tf.values import Array, as_tensor, to_array

__all__ = [
    "as_string",
    "bytes_split",
    "format",
    "join",
    "length",
    "lower",
    "ngrams",
    "reduce_join",
    "regex_full_match",
    "regex_replace",
    "split",
    "strip",
    "substr",
    "to_hash_bucket",
    "to_hash_bucket_fast",
    "to_hash_bucket_strong",
    "to_number",
    "unicode_decode",
    "unicode_encode",
    "unicode_split",
    "unicode_transcode",
    "upper",
]


@elementwise
def lower(input: Any, encoding: str = "", name: str | None = None) -> Any:
    """Letters as small letters: only those of ASCII, unless `encoding` is utf-8."""
    return _change_case("lower", input, encoding)


@elementwise
def upper(input: Any, encoding: str = "", name: str | None = None) -> Any:
    """Letters as capitals: only those of ASCII, unless `encoding` is utf-8."""
    return _change_case("upper", input, encoding)


def _change_case(call: str, value: Any, encoding: str) -> Array:
    if encoding not in ("", None, "utf-8"):
        raise InvalidArgumentError(
            f"tf.strings.{call}: encoding must be utf-8 or empty, got {encoding!r}"
        )
    change = getattr(str if encoding else bytes, call)
    if not encoding:
        return map_texts(f"strings.{call}", value, change)
    return map_texts(
        f"strings.{call}", value, lambda text: change(text.decode(errors="replace")).encode()
    )


@elementwise
def strip(input: Any, name: str | None = None) -> Any:
    """Without white space at both ends."""
    return map_texts("strings.strip", input, bytes.strip)


@elementwise
def length(input: Any, unit: str = "BYTE", name: str | None = None) -> Any:
    """The number of bytes, or of characters if `unit` is UTF8_CHAR."""
    return map_texts(
        "strings.length", input, len if _is_bytes("length", unit) else _count, np.int32
    )


_FOLLOWING = bytes(range(0x80, 0xC0))
"""The bytes after the first one of a character in UTF-8."""
_CHARACTER = re.compile(rb"(?s).[\x80-\xbf]*")


def _count(text: bytes) -> int:
    return len(text.translate(None, _FOLLOWING))


def _is_bytes(call: str, unit: str) -> bool:
    if unit not in (None, "BYTE", "UTF8_CHAR"):
        raise InvalidArgumentError(f"tf.strings.{call}: unit must be BYTE or UTF8_CHAR, got {unit}")
    return unit != "UTF8_CHAR"


@elementwise
def substr(input: Any, pos: Any, len: Any, unit: str = "BYTE", name: str | None = None) -> Any:
    """A part of each string: `len` bytes (or characters) from `pos` on."""
    first, size = to_array(pos), to_array(len)
    if first.shape != size.shape:
        raise InvalidArgumentError(
            f"tf.strings.substr: pos and len must have one shape, got {first.shape}, {size.shape}"
        )
    array, starts, counts = np.broadcast_arrays(texts("strings.substr", input), first, size)
    in_bytes = _is_bytes("substr", unit)
    parts = [
        _part(text, int(start), int(count), in_bytes)
        for text, start, count in zip(array.flat, starts.flat, counts.flat, strict=True)
    ]
    return vector(parts).reshape(array.shape)


def _part(text: bytes, start: int, count: int, in_bytes: bool) -> Any:
    whole: Any = text if in_bytes else _CHARACTER.findall(text)
    if not -len(whole) <= start <= len(whole):
        raise InvalidArgumentError(
            f"tf.strings.substr: pos {start} is out of range for string {text!r:.40}"
        )
    first = start + len(whole) if start < 0 else start
    if not in_bytes:
        return b"".join(whole[first : first + max(count, 0)])
    return whole[first : None if count < 0 else first + count]


@operation
def join(inputs: Any, separator: Any = "", name: str | None = None) -> Any:
    """Strings one after another, element by element."""
    if isinstance(inputs, str | bytes):
        raise InvalidTypeError(f"tf.strings.join: needs a list of strings, got {inputs!r:.60}")
    rows_like = next((one for one in inputs if isinstance(one, RaggedTensor)), None)
    if rows_like is not None:
        # Arrays are joined with the flat values, as in TensorFlow.
        flat = [
            rows_like.operand_like(one, "strings.join") if isinstance(one, RaggedTensor) else one
            for one in inputs
        ]
        return rows_like.with_flat_values(join(flat, separator))
    arrays = [texts("strings.join", one) for one in inputs]
    between = to_array(separator or "")[()]
    shapes = {array.shape for array in arrays if array.ndim}
    if not arrays:
        return np.array(b"", object)
    if len(shapes) > 1:
        raise InvalidArgumentError(f"tf.strings.join: the shapes differ: {sorted(shapes)}")
    rows = np.broadcast_arrays(*arrays)
    joined = [between.join(row) for row in zip(*(one.flat for one in rows), strict=True)]
    return vector(joined).reshape(rows[0].shape)


def split(input: Any, sep: Any = None, maxsplit: int = -1, name: str | None = None) -> Any:
    """The parts between separators: a vector for one string, ragged rows for several."""
    between = None if sep is None else to_array(sep)[()]
    if isinstance(between, np.ndarray):
        raise InvalidArgumentError(f"tf.strings.split: sep must be one string, got {sep!r:.60}")
    between = between or None
    return _split_each(
        "strings.split", input, lambda text: _split_one(text, between, int(maxsplit))
    )


def _split_one(text: bytes, between: bytes | None, most: int) -> list[bytes]:
    if between is not None:
        return text.split(between, most) if text else [b""]
    if most == 0:
        return [text]
    parts = text.split(None, most)
    # TensorFlow appends what is left after `most` parts, also if that is empty.
    return [*parts, b""] if 0 < most == len(parts) else parts


def _split_each(
    call: str, value: Any, function: Callable[[bytes], Any], dtype: Any = object
) -> Any:
    """A function from a string to a list: a vector for one string, ragged rows for several."""
    if isinstance(value, RaggedTensor):
        return value.with_flat_values(_split_each(call, value.flat_values, function, dtype))
    array = texts(call, value)
    if array.ndim == 0:
        return as_tensor(vector(function(array[()]), dtype))
    flat = [vector(function(text), dtype) for text in array.ravel().tolist()]
    rows = Ragged.from_rows(flat, dtype) if flat else Ragged(np.zeros(0, dtype), [0])
    return RaggedTensor(group_rows(rows, array.shape))


def bytes_split(input: Any, name: str | None = None) -> Any:
    """The single bytes of strings."""
    return _split_each(
        "strings.bytes_split", input, lambda text: [text[i : i + 1] for i in range(len(text))]
    )


def unicode_split(
    input: Any,
    input_encoding: str,
    errors: str = "replace",
    replacement_char: int = 65533,
    name: str | None = None,
) -> Any:
    """The characters of strings, each as a string."""
    decode = _decoder("unicode_split", input_encoding, errors, replacement_char)
    return _split_each(
        "strings.unicode_split",
        input,
        lambda text: [one.encode(input_encoding) for one in decode(text)],
    )


def unicode_decode(
    input: Any,
    input_encoding: str,
    errors: str = "replace",
    replacement_char: int = 65533,
    replace_control_characters: bool = False,
    name: str | None = None,
) -> Any:
    """The code points of strings."""
    decode = _decoder("unicode_decode", input_encoding, errors, replacement_char)

    def points(text: bytes) -> list[int]:
        found = map(ord, decode(text))
        if not replace_control_characters:
            return list(found)
        return [replacement_char if point < 32 else point for point in found]

    return _split_each("strings.unicode_decode", input, points, np.int32)


def _decoder(call: str, encoding: str, errors: str, replacement: int) -> Callable[[bytes], str]:
    def decode(text: bytes) -> str:
        try:
            if errors == "replace" and replacement != 0xFFFD:
                return text.decode(encoding, "replace").replace("\ufffd", chr(replacement))
            return text.decode(encoding, errors)
        except UnicodeDecodeError as error:
            raise InvalidArgumentError(f"tf.strings.{call}: {error}") from None

    return decode


def unicode_encode(
    input: Any,
    output_encoding: str,
    errors: str = "replace",
    replacement_char: int = 65533,
    name: str | None = None,
) -> Any:
    """Rows of code points as strings."""
    rows = plain_rows(input)
    if not rows.shape:
        raise InvalidArgumentError("tf.strings.unicode_encode: needs a list of code points")
    if isinstance(rows, np.ndarray) and rows.ndim > 2:
        flat = rows.reshape(math.prod(rows.shape[:-1]), rows.shape[-1])
        made = unicode_encode(flat, output_encoding, errors, replacement_char)
        return as_tensor(np.reshape(made, rows.shape[:-1]))
    if len(rows.shape) == 1:
        return as_tensor(_encode(rows, output_encoding, errors, replacement_char))
    encoded = [_encode(row, output_encoding, errors, replacement_char) for row in rows]
    return as_tensor(vector(encoded))


def _encode(points: Array, encoding: str, errors: str, replacement: int) -> bytes:
    """The characters as bytes; numbers that are no characters are treated as `errors` says."""
    codes: list[int] = points.tolist()
    wrong = {code for code in codes if not 0 <= code < 0x110000 or 0xD800 <= code < 0xE000}
    if wrong and errors == "strict":
        raise InvalidArgumentError(
            f"tf.strings.unicode_encode: {min(wrong)} is no character of Unicode"
        )
    if wrong:
        other = [replacement] if errors == "replace" else []
        codes = [one for code in codes for one in (other if code in wrong else [code])]
    return "".join(map(chr, codes)).encode(encoding)


@elementwise
def regex_replace(
    input: Any, pattern: Any, rewrite: Any, replace_global: bool = True, name: str | None = None
) -> Any:
    r"""Every match of a pattern replaced; `\1` in `rewrite` is the first group."""
    found = regex_of("regex_replace", to_array(pattern)[()])
    template, count = to_array(rewrite)[()], 0 if replace_global else 1
    return map_texts(
        "strings.regex_replace", input, lambda text: found.replace(text, template, count)
    )


@elementwise
def regex_full_match(input: Any, pattern: Any, name: str | None = None) -> Any:
    """Whether a pattern matches the whole string."""
    found = regex_of("regex_full_match", to_array(pattern)[()])
    return map_texts("strings.regex_full_match", input, found.matches, bool)


@elementwise
def to_number(input: Any, out_type: Any = np.float32, name: str | None = None) -> Any:
    """The numbers that strings say."""
    kind = as_dtype(out_type)
    if kind.name not in ("float32", "float64", "int32", "int64", "uint32", "uint64"):
        raise InvalidTypeError(f"tf.strings.to_number: out_type cannot be {kind.name}")
    parse: Callable[[bytes], Any] = int if kind.is_integer else _parse_float
    limits = np.iinfo(kind.dtype) if kind.is_integer else None

    def number(text: bytes) -> Any:
        try:
            value = None if b"_" in text else parse(text)  # Only Python knows 1_000.
        except ValueError:
            value = None
        if value is None or (limits is not None and not limits.min <= value <= limits.max):
            raise InvalidArgumentError(
                f"tf.strings.to_number: StringToNumberOp could not correctly convert string: "
                f"{text.decode(errors='replace')}"
            )
        return value

    return map_texts("strings.to_number", input, number, kind.dtype)


def _parse_float(text: bytes) -> float:
    """A float in digits, or in hexadecimal ones behind 0x."""
    try:
        return float(text)
    except ValueError:
        if b"0x" not in text.lower():
            raise
        return float.fromhex(text.decode())


@elementwise
def to_hash_bucket_fast(input: Any, num_buckets: Any, name: str | None = None) -> Any:
    """The bucket of each string, by the hash that TensorFlow uses."""
    return _buckets("to_hash_bucket_fast", input, num_buckets, fingerprint64)


@elementwise
def to_hash_bucket(input: Any, num_buckets: Any, name: str | None = None) -> Any:
    """The bucket of each string, by another hash than that of `to_hash_bucket_fast`."""
    return _buckets("to_hash_bucket", input, num_buckets, murmur64)


@elementwise
def to_hash_bucket_strong(input: Any, num_buckets: Any, key: Any, name: str | None = None) -> Any:
    """The bucket of each string, by a hash with a key of two integers."""
    numbers = [int(number) for number in key]
    if len(numbers) != 2:
        raise InvalidArgumentError(
            f"tf.strings.to_hash_bucket_strong: key must be two integers, got {key!r:.60}"
        )
    pair = numbers[0], numbers[1]
    return _buckets("to_hash_bucket_strong", input, num_buckets, lambda text: sip_hash(text, pair))


def _buckets(call: str, input: Any, num_buckets: Any, hashed: Callable[[bytes], int]) -> Any:
    count = int(num_buckets)
    if count < 1:
        raise InvalidArgumentError(
            f"tf.strings.{call}: num_buckets must be at least 1, got {count}"
        )
    return map_texts(f"strings.{call}", input, lambda text: hashed(text) % count, np.int64)


@elementwise
def as_string(
    input: Any,
    precision: int = -1,
    scientific: bool = False,
    shortest: bool = False,
    width: int = -1,
    fill: str = "",
    name: str | None = None,
) -> Any:
    """Numbers as strings."""
    array = to_array(input)
    if array.dtype.kind == "O":
        return array
    if array.dtype.name == "bfloat16":
        array = array.astype(np.float32)
    if scientific and shortest:
        raise InvalidArgumentError(
            "tf.strings.as_string: scientific and shortest exclude each other"
        )
    if array.dtype.kind not in "fc" and (precision >= 0 or scientific or shortest):
        raise InvalidArgumentError(
            f"tf.strings.as_string: precision, scientific and shortest need floats, "
            f"got {array.dtype.name}"
        )
    if fill not in _FILLINGS:
        raise InvalidArgumentError(
            f"tf.strings.as_string: fill must be one of {_FILLINGS}, got {fill!r}"
        )
    digits = f".{precision}" if precision >= 0 else ""
    size = str(width) if width >= 0 else ""
    letter = "f"
    if shortest:
        letter = "g"
    elif scientific:
        letter = "e"
    pattern = f"%{fill}{size}{digits}{letter}" if array.dtype.kind in "fc" else f"%{fill}{size}d"
    result = np.empty(array.shape, object)
    result.ravel()[:] = [_text_of(one, pattern) for one in array.ravel().tolist()]
    return result


_FILLINGS = ("", " ", "+", "-", "0", "#")


def _text_of(number: Any, pattern: str) -> bytes:
    if isinstance(number, bool):
        return b"true" if number else b"false"
    if isinstance(number, complex):
        return f"({pattern % number.real},{pattern % number.imag})".encode()
    if isinstance(number, float) and not math.isfinite(number):
        pattern = pattern.replace("%0", "%")  # Zeros are for digits.
    return str(pattern % number).encode()


def format(
    template: str,
    inputs: Any,
    placeholder: str = "{}",
    summarize: int = 3,
    name: str | None = None,
) -> Any:
    """A text with the values of tensors in place of each `{}`."""
    values = inputs if isinstance(inputs, list | tuple) else [inputs]
    parts = template.split(placeholder)
    if len(parts) - 1 != len(values):
        kind = InvalidArgumentError if isinstance(inputs, list | tuple) else InvalidTypeError
        raise kind(f"tf.strings.format: {len(parts) - 1} placeholders, but {len(values)} values")
    shown = [printing.array_text(to_array(one), summarize) for one in values]
    text = parts[0] + "".join(one + part for one, part in zip(shown, parts[1:], strict=True))
    return as_tensor(text.encode())


def ngrams(
    data: Any,
    ngram_width: Any,
    separator: str = " ",
    pad_values: Any = None,
    padding_width: Any = None,
    preserve_short_sequences: bool = False,
    name: str | None = None,
) -> Any:
    """Neighbouring strings of each row, joined."""
    between = separator.encode()
    widths = ngram_width if isinstance(ngram_width, list | tuple) else [ngram_width]
    pair = pad_values if isinstance(pad_values, list | tuple) else (pad_values, pad_values)

    def pad(words: list[bytes], width: int) -> list[bytes]:
        if pad_values is None:
            return words
        times = width - 1 if padding_width is None else min(int(padding_width), width - 1)
        return [bytes_of(pair[0])] * times + words + [bytes_of(pair[1])] * times

    def grams(row: Array) -> list[bytes]:
        words = row.tolist()
        made = [
            between.join(more[i : i + width])
            for width in widths
            for more in [pad(words, width)]
            for i in range(len(more) - width + 1)
        ]
        short = preserve_short_sequences and words and not made
        return [between.join(words)] if short else made

    if isinstance(data, RaggedTensor):
        rows = [vector(grams(row)) for row in data.ragged]
        return RaggedTensor(Ragged.from_rows(rows, object))
    array = texts("strings.ngrams", data)
    if array.ndim == 1:
        return as_tensor(vector(grams(array)))
    return as_tensor(np.stack([vector(grams(row)) for row in array]))


@elementwise
def unicode_transcode(
    input: Any,
    input_encoding: str,
    output_encoding: str,
    errors: str = "replace",
    replacement_char: int = 65533,
    replace_control_characters: bool = False,
    name: str | None = None,
) -> Any:
    """Strings in another encoding."""
    decode = _decoder("unicode_transcode", input_encoding, errors, replacement_char)
    # The marks of the order of bytes are not written.
    to = {"UTF-16": "UTF-16-BE", "UTF-32": "UTF-32-BE"}.get(
        output_encoding.upper(), output_encoding
    )
    return map_texts("strings.unicode_transcode", input, lambda text: decode(text).encode(to))


__getattr__ = refuse_names_of_tf("strings", __all__)
