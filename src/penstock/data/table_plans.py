"""Plans of tables: files of rows that can be read in any order, and tables in memory.

Making one reads the footers of all files and compares their columns; no row is read. A file that
is missing, damaged or different from the first is an error of the call that names it.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from penstock.data import arguments as check
from penstock.data.skipping import BadFiles
from penstock.element import nest
from penstock.element.chunk import Chunk, describe_spec
from penstock.element.dtypes import string
from penstock.element.spec import TensorSpec
from penstock.engine.formats import TABLES, json_lines, mds, tar
from penstock.engine.formats.arrow_columns import check_fill, specs_of
from penstock.engine.formats.extras import load_extra
from penstock.engine.formats.files import expand_braces, resolve_paths, version_of
from penstock.engine.formats.indexed import refuse_compressed
from penstock.engine.formats.lance_tables import LanceTable
from penstock.engine.formats.records import BY_NAME
from penstock.engine.formats.remote_files import FileVersion
from penstock.engine.formats.tables import TableReader
from penstock.engine.memory_tables import TableData
from penstock.engine.pool import Pool
from penstock.errors import InvalidArgumentError, InvalidTypeError
from penstock.plan.nodes import (
    Data,
    Node,
    Records,
    Select,
    Slices,
    TableFile,
    TableRows,
    call_of,
)

Options = tuple[tuple[str, Any], ...]

_FOOTERS_AT_ONCE = 16


def plan_files(
    source: str,
    format: str,
    *,
    paths: Any,
    columns: Any = None,
    fill: Any = None,
    on_error: Any = "raise",
) -> Node:
    """The rows of files, one file after the other."""
    call = f"Dataset.{source}"
    bad = BadFiles(call, on_error)
    found = bad.resolve(check.paths(call, "path", paths))
    return _plan_rows(source, format, found, bad=bad, columns=columns, fill=fill)


def _plan_rows(
    source: str,
    format: str,
    paths: Sequence[str],
    *,
    bad: BadFiles,
    options: Options = (),
    columns: Any = None,
    fill: Any = None,
) -> Node:
    call = call_of(source)
    files: list[TableFile] = []
    names: tuple[str, ...] = ()
    specs: Any = None
    kinds: dict[str, Any] = {}
    for path, inspect in _inspections(format, paths, call, options):
        with bad.checking():
            version, reader = inspect()
            if not files:
                names = select_columns(call, columns, reader.specs, path)
                specs = _pick(reader.specs, names)
                kinds = _kinds(reader, names)
            else:
                _compare(call, path, _pick(reader.specs, names), files[0].path, specs)
            files.append(TableFile(path, *version, reader.footer, reader.blocks))
    bad.report(has_good=bool(files))
    filled = tuple(check_fill(call, fill, kinds).items())
    rows = TableRows(source, format, tuple(files), names, specs, filled, options=options)
    return bad.skip_in(rows)


def _inspections(
    format: str, paths: Sequence[str], call: str, options: Options
) -> Iterator[tuple[str, Callable[[], tuple[FileVersion, TableReader]]]]:
    """How to get what a footer says, for each file; those of remote files are read at once."""
    if len(paths) < 2 or not any("://" in path for path in paths):
        for path in paths:
            yield path, functools.partial(_inspect, format, path, call, options)
        return
    pool = Pool(_FOOTERS_AT_ONCE, "penstock-footers")
    try:
        answers = [pool.submit(_inspect, format, path, call, options) for path in paths]
        for path, answer in zip(paths, answers, strict=True):
            yield path, answer.result
    finally:
        pool.stop(drop=True)


def _inspect(
    format: str, path: str, call: str, options: Options
) -> tuple[FileVersion, TableReader]:
    """The version of a file and its reader, which is closed."""
    version = version_of(path, call)
    reader = TABLES[format](path, call, **dict(options))
    reader.close()
    return version, reader


def plan_table(source: str, table: Any, *, columns: Any = None, fill: Any = None) -> Node:
    """The rows of an Arrow table in memory."""
    call = f"Dataset.{source}"
    specs = specs_of(table.schema)
    names = select_columns(call, columns, specs, "")
    kinds = {name: table.schema.field(name).type for name in names}
    filled = tuple(check_fill(call, fill, kinds).items())
    data = TableData(table.select(list(names)))
    blocks = tuple(batch.num_rows for batch in data.batches)
    file = TableFile("", size=0, modified="", footer=0, blocks=blocks)
    return TableRows(source, "arrow", (file,), names, _pick(specs, names), filled, data)


def plan_json_lines(paths: Any, columns: Any, fill: Any, on_error: Any = "raise") -> Node:
    """The lines of JSON files, in order; the types of columns are stated, or those of the first."""
    call = json_lines.CALL
    bad = BadFiles(call, on_error)
    found = bad.resolve(check.paths(call, "path", paths))
    if isinstance(columns, Mapping):
        schema = json_lines.schema_of(columns, lambda value: check.dtype(call, "columns", value))
        names = select_columns(call, list(columns), specs_of(schema), found[0])
    else:
        listed = None if columns is None else _names(call, columns)
        infer = functools.partial(
            json_lines.infer_schema, skips=bad.skips, columns=listed, fill=fill
        )
        nothing = 'has no lines; state the columns, as in columns={"x": "int64"}'
        path, schema = bad.read_first(found, infer, nothing)
        names = select_columns(call, columns, specs_of(schema), path)
        schema = json_lines.select_fields(schema, names)
    specs = specs_of(schema)
    kinds = {name: schema.field(name).type for name in names}
    is_compressed = any(map(json_lines.JsonLinesReader.packing_of, found))
    options = (
        ("schema", schema.serialize().to_pybytes()),
        ("columns", names),
        ("fill", tuple(check_fill(call, fill, kinds).items())),
        ("is_strict", columns is None),
        # A compressed file is read from its start, so it is not divided.
        ("compression", BY_NAME if is_compressed else None),
        ("spec", _pick(specs, names)),
    )
    return bad.skip_in(Records(check.names(call, "path", found), "json_lines", options))


def plan_tar(paths: Any, columns: Any, index: Any, on_error: Any = "raise") -> Node:
    """The samples of tar archives; the fields are stated, or those of the first sample."""
    bad = BadFiles(tar.CALL, on_error)
    found = bad.resolve(check.paths(tar.CALL, "path", paths))
    folder = _index_folder(tar.CALL, index)
    if columns is None:
        nothing = (
            "has no samples, which are files with an extension; state the fields, as in "
            'columns=["jpg"]'
        )
        names = bad.read_first(found, tar.first_fields, nothing)[1]
    else:
        names = _names(tar.CALL, columns)
    fields = tuple(sorted(name for name in names if name != tar.KEY))
    options: Options = (("fields", fields), ("is_strict", columns is None))
    if folder is None:
        spec = {name: TensorSpec((), string) for name in (tar.KEY, *fields)}
        records = Records(check.names(tar.CALL, "path", found), "tar", (*options, ("spec", spec)))
        return bad.skip_in(records)
    for path in found:
        refuse_compressed(path, tar.TarReader.packing_of(path), tar.CALL)
    return _plan_rows("from_tar", "tar", found, bad=bad, options=(*options, ("folder", folder)))


def plan_tfrecords(
    source: str, paths: Any, index: Any, compression: Any, bad: BadFiles
) -> Node | None:
    """The records of TFRecord files by position; None without `index`."""
    folder = _index_folder(source, index)
    if folder is None:
        return None
    if check.is_dataset(paths):
        raise InvalidTypeError(
            f"{source}: with index, filenames must be known when the dataset is made; got a "
            "dataset: give a list of names"
        )
    names = [os.fsdecode(name) for name in check.paths(source, "path", paths)]
    found = [name if "://" in name else os.path.abspath(name) for name in names]
    if not found:
        raise InvalidArgumentError(f"{source}: index needs at least one path, got an empty list")
    for path in found:
        refuse_compressed(path, compression, source)
    return _plan_rows(source, "tfrecord", found, bad=bad, options=(("folder", folder),))


def _index_folder(call: str, index: Any) -> str | None:
    """Where indexes are kept; empty for the user's own folder on each machine.

    None if files are read from their start.
    """
    if isinstance(index, bool | np.bool_):
        return "" if index else None
    folder = check.path(call, "index", index)
    return folder if "://" in folder else os.path.abspath(folder)


def plan_mds(paths: Any, columns: Any, on_error: Any) -> Node:
    """The samples of MDS datasets: of folders with an `index.json`, or of single shards."""
    call = "Dataset.from_mds"
    bad = BadFiles(call, on_error)
    names = [os.fsdecode(name) for name in check.paths(call, "path", paths)]
    found = [path for name in names for path in expand_braces(name)]
    if not found:
        raise InvalidArgumentError(f"{call}: needs at least one path, got an empty list")
    if all(".mds" in path.rpartition("/")[2] for path in found):
        return _plan_rows("from_mds", "mds", resolve_paths(found, call), bad=bad, columns=columns)
    indexes = resolve_paths([mds.index_of(path) for path in found], call)
    shards = [shard for index in indexes for shard in mds.find_shards(index, call)]
    reader = TABLES["mds"](shards[0].path, call)
    try:
        selected = select_columns(call, columns, reader.specs, shards[0].path)
        specs = _pick(reader.specs, selected)
    finally:
        reader.close()
    for shard in shards:
        if shard.columns != shards[0].columns:
            raise InvalidArgumentError(
                f"{call}: {shard.path!r} has other columns or encodings than {shards[0].path!r}; "
                "all shards must have the same"
            )
    files = tuple(TableFile(*shard[:5]) for shard in shards)
    return bad.skip_in(TableRows("from_mds", "mds", files, selected, specs))


def plan_lance(path: Any, columns: Any, fill: Any, version: Any, on_error: Any = "raise") -> Node:
    """The rows of a Lance dataset, at one version."""
    call = "Dataset.from_lance"
    bad = BadFiles(call, on_error)
    place = check.path(call, "path", path)
    place = place if "://" in place else os.path.abspath(place)
    wanted = None if version is None else check.integer(call, "version", version, at_least=1)
    table = LanceTable(place, call, wanted)
    names = select_columns(call, columns, table.specs, place)
    filled = tuple(check_fill(call, fill, _kinds(table, names)).items())
    file = TableFile(place, size=-1, modified="", footer=table.footer, blocks=table.blocks)
    rows = TableRows(
        "from_lance",
        "lance",
        (file,),
        names,
        _pick(table.specs, names),
        filled,
        options=(("version", table.version),),
    )
    return bad.skip_in(rows)


def plan_positions(plan: Node, positions: Any) -> Node:
    """The rows of a table at positions."""
    column = np.asarray(positions, np.int64)
    return Select(plan, Slices(Data(Chunk(nest.LEAF, [column], len(column)).as_read_only())))


def _kinds(reader: Any, names: Sequence[str]) -> dict[str, Any]:
    """The Arrow types of columns; none where the format has no missing values."""
    schema = getattr(reader, "schema", None)
    return {} if schema is None else {name: schema.field(name).type for name in names}


def select_columns(call: str, columns: Any, specs: Any, path: str) -> tuple[str, ...]:
    """The names of the columns to read; all of them without `columns`."""
    table = repr(path) if path else "the table"
    if not isinstance(specs, Mapping):
        if columns is not None:
            raise InvalidArgumentError(
                f"{call}: columns={columns!r}, but {table} has one array without columns"
            )
        if isinstance(specs, str):
            raise InvalidArgumentError(f"{call}: {table} cannot be read: {specs}")
        return ()
    names = tuple(specs) if columns is None else _names(call, columns)
    for name in names:
        if name not in specs:
            raise InvalidArgumentError(
                f"{call}: {table} has no column {name!r}; it has {', '.join(map(repr, specs))}"
            )
        if isinstance(specs[name], str):
            raise InvalidArgumentError(
                f"{call}: column {name!r} of {table} cannot be read: {specs[name]}; "
                "leave it out with columns=[...]"
            )
    if columns is not None and not names:
        raise InvalidArgumentError(
            f"{call}: columns=[] chooses no columns to read; leave it out to read all of them: "
            f"{', '.join(map(repr, specs))}"
        )
    if not names:
        raise InvalidArgumentError(f"{call}: {table} has no columns to read")
    return names


def _names(call: str, columns: Any) -> tuple[str, ...]:
    listed = isinstance(columns, Sequence) and not isinstance(columns, str | bytes)
    if not listed or not all(isinstance(name, str) for name in columns):
        remedy = f"; write columns=[{columns!r}]" if isinstance(columns, str) else ""
        raise InvalidTypeError(
            f"{call}: columns must be a list of names, got {check.describe(columns)}{remedy}"
        )
    if len(set(columns)) < len(columns):
        raise InvalidArgumentError(f"{call}: columns has a name twice: {list(columns)}")
    return tuple(columns)


def _pick(specs: Any, names: Sequence[str]) -> Any:
    return {name: specs.get(name) for name in names} if isinstance(specs, Mapping) else specs


def _compare(call: str, path: str, specs: Any, first_path: str, first: Any) -> None:
    """Raises if a file lacks a column of the first file, or has it with another type."""
    if specs == first:
        return
    if not isinstance(first, Mapping) or not isinstance(specs, Mapping):
        raise InvalidArgumentError(
            f"{call}: {path!r} has {_words(specs)}, but {first_path!r} has {_words(first)}"
        )
    name = next(name for name in first if specs.get(name) != first[name])
    found = "no such column" if specs.get(name) is None else _words(specs[name])
    raise InvalidArgumentError(
        f"{call}: column {name!r} is {_words(first[name])} in {first_path!r}, but {path!r} has "
        f"{found}; all files must have the same columns: choose some with columns=[...], or "
        "write the file again"
    )


def _words(spec: Any) -> str:
    if isinstance(spec, str):
        return f"one that cannot be read ({spec})"
    shapes = [str(leaf.shape) for leaf in nest.flatten(spec)[0] if hasattr(leaf, "shape")]
    return f"{describe_spec(spec)} of shape {', '.join(shapes)}"


def arrow_table(call: str, value: Any) -> Any | None:
    """An Arrow table of tables, record batches or a reader of them; None for anything else."""
    arrow = load_extra("pyarrow", call)
    if isinstance(value, arrow.Table):
        return value
    if isinstance(value, arrow.RecordBatch):
        return arrow.Table.from_batches([value])
    if isinstance(value, arrow.RecordBatchReader):
        return value.read_all()
    if isinstance(value, list | tuple) and value:
        tables = [arrow_table(call, part) for part in value if not isinstance(part, str | bytes)]
        if len(tables) == len(value) and all(table is not None for table in tables):
            return _join_tables(call, arrow, tables)
    if comes_from(value, "pyarrow"):
        raise InvalidTypeError(
            f"{call}: needs tables, record batches or paths, got {type(value).__name__}; put an "
            'array into a table, as in pyarrow.table({"x": array})'
        )
    return None


def comes_from(value: Any, package: str) -> bool:
    """Whether the class of a value, or a base of it, is defined in a package."""
    return any(kind.__module__.partition(".")[0] == package for kind in type(value).__mro__)


def _join_tables(call: str, arrow: Any, tables: Sequence[Any]) -> Any:
    try:
        return arrow.concat_tables(tables)
    except arrow.ArrowException as error:
        first = tables[0].schema
        number = next(n for n, table in enumerate(tables) if not table.schema.equals(first))
        raise InvalidArgumentError(
            f"{call}: table {number} has the columns {describe_columns(tables[number].schema)}, "
            f"but table 0 has {describe_columns(first)}; all tables must have the same"
        ) from error


def describe_columns(schema: Any) -> str:
    """The names and types of columns, for an error."""
    return ", ".join(f"{field.name!r}: {field.type}" for field in schema)
