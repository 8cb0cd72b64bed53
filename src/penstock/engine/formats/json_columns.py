"""The columns of JSON lines: as the user states them, or as the first lines of a file show them.

One odd line among the first changes nothing for the others: a column that only it has is none, and
a value that contradicts the lines before decides no type.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, BinaryIO

import numpy as np

from penstock.engine.formats.arrow_columns import fits
from penstock.engine.formats.extras import load_extra
from penstock.engine.formats.files import as_path, translate_errors
from penstock.engine.formats.inflate import name_packing
from penstock.engine.formats.json_lines import BLOCK, CALL, count_good, open_lines, packing_of
from penstock.errors import DataLossError, InvalidTypeError

_MOST_ODD = 8
"""So many lines that do not fit are passed over to find the types; finding each takes time."""

_MARK = b"\xef\xbb\xbf"
"""Some programs begin UTF-8 files with it."""


def infer_schema(
    path: str, skips: bool, columns: Iterable[str] | None = None, fill: Any = None
) -> Any | None:
    """The names and types of the columns in the first lines of a file; None if it has no lines.

    The columns are those of the first line, those that most of the first lines have, those with a
    value in `fill`, and `columns`. A line that does not fit those before it is not asked: reading
    it is an error that names the line. If `skips`, bad lines before the first good one are passed
    over.
    """
    with translate_errors(path, CALL), open_lines(as_path(path, CALL), packing_of(path)) as file:
        data = _first_lines(file)
    lines = [line for line in data.removeprefix(_MARK).split(b"\n") if line.strip()]
    if not lines:
        return None
    while isinstance(first := _parse_freely(lines[:1]), Exception):
        bad = lines.pop(0)
        if not skips or not lines:
            raise _not_json_lines(path, data, bad, first)
    return _choose_columns(_parse_fitting(lines), first, columns, fill)


def _parse_fitting(lines: list[bytes]) -> Any:
    """The table of lines whose first one is good, without those that do not fit the ones before.

    After `_MOST_ODD` such lines, the lines behind them are left out, too.
    """
    odd = 0
    while isinstance(found := _parse_freely(lines), Exception):
        count = count_good(lines, lambda some: not isinstance(_parse_freely(some), Exception))
        odd += 1
        lines = lines[:count] + (lines[count + 1 :] if odd < _MOST_ODD else [])
    return found


def _parse_freely(lines: list[bytes]) -> Any:
    """The table of lines, with the types that Arrow finds, or the exception of a bad line."""
    arrow, json = load_extra("pyarrow", CALL), load_extra("pyarrow.json", CALL)
    data = b"\n".join(lines) + b"\n"
    try:
        options = json.ReadOptions(use_threads=False, block_size=len(data) + 1)
        table = json.read_json(arrow.BufferReader(data), options)
        table.schema.names  # noqa: B018 (a name that is not UTF-8 raises)
    except (arrow.ArrowException, ValueError) as error:
        return error
    if table.num_rows != len(lines):
        return ValueError(f"{len(lines)} lines have {table.num_rows} values")
    return table


def _not_json_lines(path: str, data: bytes, line: bytes, error: Exception) -> DataLossError:
    """The error of a file whose first line is no object."""
    reason = str(error).removeprefix("JSON parse error: ").partition("\n")[0]
    remedy = "each line must be a complete object"
    if name := name_packing(data):
        remedy = f"it is compressed by {name}; its name must end in .gz or .zst to be unpacked"
    elif data.startswith((b"\xff\xfe", b"\xfe\xff")):
        remedy = "it is UTF-16; write it as UTF-8"
    elif line.lstrip().startswith(b"["):
        remedy = "it is an array; write each object in a line of its own, as jq -c '.[]' does"
    elif line.strip() == b"{":
        remedy = "an object has several lines; write each in one line, as jq -c . does"
    return DataLossError(
        f"{CALL}: {path!r}, line 1: it cannot be read as JSON lines ({reason}); {remedy}"
    )


def _first_lines(file: BinaryIO) -> bytes:
    """About a block of complete lines, and at least one.

    A file may return less than is asked for: the reader of a GZIP file stops at each member. If the
    file is damaged behind some lines, reading them raises the error in its place.
    """
    blocks: list[bytes] = []
    missing, has_line = BLOCK, False
    try:
        while missing > 0 or not has_line:
            block = file.read(missing if missing > 0 else BLOCK)
            if not block:
                return b"".join(blocks)
            blocks.append(block)
            missing -= len(block)
            has_line = has_line or b"\n" in block
    except DataLossError:
        if not has_line:
            raise
    data = b"".join(blocks)
    return data[: data.rfind(b"\n") + 1]


def _choose_columns(table: Any, first: Any, columns: Iterable[str] | None, fill: Any) -> Any:
    """The schema of the first lines, without the columns that few of them have.

    `first` is the table of the first line.
    """
    arrow = load_extra("pyarrow", CALL)
    named = {*(columns or ()), *(fill if isinstance(fill, Mapping) else ())}
    fields = []
    for field, column in zip(table.schema, table.columns, strict=True):
        value = fill.get(field.name) if isinstance(fill, Mapping) else fill
        known = first.schema.field(field.name).type if field.name in first.schema.names else None
        kind = _as_text(field.type)
        if value is None or fits(value, kind) is not None:
            kind = _as_text(_usual_type(column, known))
            if known is None and field.name not in named and not _is_usual(column, len(table)):
                continue
        fields.append(field.with_type(kind))
    return arrow.schema(fields or [field.with_type(_as_text(field.type)) for field in table.schema])


def _usual_type(column: Any, first: Any) -> Any:
    """The type of a column, without the fields of structs that few rows have.

    `first` is the type of the first row, whose fields all stay.
    """
    arrow = load_extra("pyarrow", CALL)
    if not arrow.types.is_struct(column.type):
        return column.type
    is_known = first is not None and arrow.types.is_struct(first)
    known = {field.name: field.type for field in first} if is_known else {}
    count = len(column) - column.null_count
    fields = [
        field.with_type(_usual_type(part, known.get(field.name)))
        for field, part in zip(column.type, column.flatten(), strict=True)
        if field.name in known or _is_usual(part, count)
    ]
    return arrow.struct(fields) if fields else column.type


def _is_usual(column: Any, count: int) -> bool:
    """Whether most of `count` rows have a value in a column."""
    return bool(2 * (len(column) - column.null_count) > count)


def _as_text(kind: Any) -> Any:
    arrow = load_extra("pyarrow", CALL)
    if arrow.types.is_temporal(kind):
        return arrow.string()
    if arrow.types.is_list(kind):
        return arrow.list_(_as_text(kind.value_type))
    if arrow.types.is_struct(kind):
        return arrow.struct([field.with_type(_as_text(field.type)) for field in kind])
    return kind


def select_fields(schema: Any, names: Iterable[str]) -> Any:
    """The columns of a schema that have some names."""
    return load_extra("pyarrow", CALL).schema([schema.field(name) for name in names])


def schema_of(columns: Any, convert_dtype: Any) -> Any:
    """The schema that the user states: a dtype by column; `[dtype]` is a list of any length."""
    arrow = load_extra("pyarrow", CALL)

    def kind(value: Any) -> Any:
        if isinstance(value, list) and len(value) == 1:
            return arrow.list_(kind(value[0]))
        if isinstance(value, dict):
            return arrow.struct([(name, kind(part)) for name, part in value.items()])
        dtype = convert_dtype(value)
        if dtype.dtype == np.dtype(object):
            return arrow.string()
        try:
            return arrow.from_numpy_dtype(dtype.dtype)
        except arrow.ArrowException:
            raise InvalidTypeError(
                f"{CALL}: columns: JSON has no {dtype.name}; read float32, and convert it in a map"
            ) from None

    for name in columns:
        if not isinstance(name, str):
            raise InvalidTypeError(f"{CALL}: columns must have names as keys, got {name!r}")
    return arrow.schema([(name, kind(value)) for name, value in columns.items()])
