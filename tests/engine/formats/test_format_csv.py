"""CSV: the grammar, row by row, and the rules from a row to an element."""

import re
import reprlib
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.data.experimental import CsvDataset
from penstock.element.dtypes import as_dtype
from penstock.engine.formats.csv import CsvReader, RowConverter
from penstock.errors import InvalidArgumentError
from tests.effort import examples

INT, LONG, FLOAT, DOUBLE, STRING = map(as_dtype, ("int32", "int64", "float32", "float64", "string"))


def rows(path: Path, limit: int = 100, **options: Any) -> list[list[str]]:
    reader = CsvReader(path, **options)
    found: list[list[str]] = []
    while part := reader.read(limit):
        found += part
    return found


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("csv") / "file"


@pytest.mark.parametrize(
    ("content", "options", "expected"),
    [
        (b"1,2\n3,4\n", {}, [["1", "2"], ["3", "4"]]),
        (b"1,2\r3,4\r\n5,6", {}, [["1", "2"], ["3", "4"], ["5", "6"]]),
        (b",\n\n,,", {}, [["", ""], [""], ["", "", ""]]),
        (b'"a,b","c\r\nd"\n', {}, [["a,b", "c\r\nd"]]),
        (b'"",""""\n', {}, [["", '"']]),
        (b'"a\n""b""\n\nc",d\n', {}, [['a\n"b"\n\nc', "d"]]),
        (b'"a\nb","c\nd"\n', {}, [["a\nb", "c\nd"]]),
        (b'1"2,"3\n4,5', {"use_quote_delim": False}, [['1"2', '"3'], ["4", "5"]]),
        (b'1|"a|b"\n', {"field_delim": "|"}, [["1", "a|b"]]),
        (b'1^"a^b"\n', {"field_delim": "^"}, [["1", "a^b"]]),
        (b'1\t"a\tb"\n', {"field_delim": "\t"}, [["1", "a\tb"]]),
        (b"x,y\n1,2\n", {"header": True}, [["1", "2"]]),
        (b'"x\ny",z\n1,2\n', {"header": True}, [["1", "2"]]),
        (b"x,y", {"header": True}, []),
        ("é,ü\n".encode(), {}, [["é", "ü"]]),
        (b"\xef\xbb\xbf1,2\n3,4\n", {}, [["1", "2"], ["3", "4"]]),
        (b'\xef\xbb\xbf"x\ny",z\n\xef\xbb\xbf,2\n', {"header": True}, [["\ufeff", "2"]]),
        (b"", {}, []),
    ],
)
@pytest.mark.parametrize("buffer_size", [0, 1, 4])
def test_grammar(
    tmp_path: Path, content: bytes, options: dict[str, Any], expected: Any, buffer_size: int
) -> None:
    (tmp_path / "file").write_bytes(content)
    assert rows(tmp_path / "file", buffer_size=buffer_size, **options) == expected


def quote_field(text: str, always_quoted: bool) -> str:
    if always_quoted or set(text) & set(',"\r\n'):
        return '"' + text.replace('"', '""') + '"'
    return text


@given(
    table=st.lists(
        st.lists(st.text(st.sampled_from('a,"\n\r é')), min_size=1, max_size=4), max_size=6
    ),
    line_end=st.sampled_from(["\n", "\r\n", "\r"]),
    always_quoted=st.booleans(),
    buffer_size=st.integers(0, 9),
    limit=st.integers(1, 4),
)
def test_reads_what_was_written(
    file: Path,
    table: list[list[str]],
    line_end: str,
    always_quoted: bool,
    buffer_size: int,
    limit: int,
) -> None:
    lines = (",".join(quote_field(text, always_quoted) for text in row) + line_end for row in table)
    file.write_bytes("".join(lines).encode())
    assert rows(file, limit, buffer_size=buffer_size) == table


def test_a_quoted_field_of_many_lines(tmp_path: Path) -> None:
    field = "\n".join(f'{{""key{n}"": {n}}}' for n in range(3000))
    (tmp_path / "file").write_text(f'1,"{field}",2\n3,4,5\n')
    found = rows(tmp_path / "file", buffer_size=100)
    assert found == [["1", field.replace('""', '"'), "2"], ["3", "4", "5"]]


@pytest.mark.parametrize("line_end", [b"\n", b"\r", b"\r\n"])
def test_rows_come_before_the_whole_file_is_read(tmp_path: Path, line_end: bytes) -> None:
    (tmp_path / "file").write_bytes((b"1,2" + line_end) * 100)
    with closing(CsvReader(tmp_path / "file", buffer_size=30)) as reader:
        assert 0 < len(reader.read(1000)) < 10


@pytest.mark.parametrize(
    ("bad", "problem"),
    [
        (b'5"6,7\n8,9\n', "a quote inside a field that is not quoted, or not doubled"),
        (b'5,"6"7\n8,9\n', "a quote inside a field that is not quoted, or not doubled"),
        (b'5,"6\n8,9\n', "a quoted field that is never closed"),
    ],
)
@pytest.mark.parametrize("buffer_size", [0, 1])
def test_malformed_rows(tmp_path: Path, bad: bytes, problem: str, buffer_size: int) -> None:
    (tmp_path / "file").write_bytes(b"1,2\n3,4\n" + bad)
    reader = CsvReader(tmp_path / "file", buffer_size=buffer_size)
    found = reader.read(9)
    if len(found) == 1:
        found += reader.read(9)
    assert found == [["1", "2"], ["3", "4"]]
    with pytest.raises(InvalidArgumentError, match=rf"in line 3 \(byte 8\), {problem}"):
        reader.read(9)
    assert reader.read(9) == [["8", "9"]]
    assert reader.read(9) == []


@pytest.mark.parametrize("buffer_size", [0, 1, 7])
@pytest.mark.parametrize("limit", [1, 100])
def test_a_stray_quote_takes_one_line_with_it(tmp_path: Path, buffer_size: int, limit: int) -> None:
    """The quote in line 2 opens no field. A stray quote closes the field of line 3."""
    (tmp_path / "file").write_bytes(b'1,2\n3"3,4\n5,"6\n7,"8",9\n"a\nb",c\n"d\n')
    reader = CsvReader(tmp_path / "file", buffer_size=buffer_size)
    found: list[Any] = []
    while not reader.has_ended:
        try:
            found += reader.read(limit)
        except InvalidArgumentError as error:
            found.append(int(error.message.split("in line ")[1].split()[0]))
    assert found == [["1", "2"], 2, 3, ["7", "8", "9"], ["a\nb", "c"], 7]


def test_a_header_that_cannot_be_read_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b'a"b,c\n1,2\n')
    reader = CsvReader(tmp_path / "file", header=True)
    with pytest.raises(InvalidArgumentError, match=r"in line 1 \(byte 0\), a quote inside"):
        reader.read(9)
    assert reader.read(9) == [["1", "2"]]
    assert reader.read(9) == []


def test_after_a_start_in_the_middle_a_row_is_named_by_its_byte(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b'1,2\n3,4\n5"6\n')
    with closing(CsvReader(tmp_path / "file", position=4)) as reader:
        assert reader.next_place == "the row at byte 4"
        reader.read(1)
        with pytest.raises(InvalidArgumentError, match="in the row at byte 8, a quote inside"):
            reader.read(9)


def test_rows_know_their_lines(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b'h,h\n1,2\n"a\r\nb",4\r\n5,6\n')
    with closing(CsvReader(tmp_path / "file", header=True)) as reader:
        places = [reader.next_place for _ in iter(lambda: reader.read(1), [])]
    assert places == ["line 3 (byte 8)", "line 5 (byte 18)", "line 6 (byte 22)"]


def test_an_empty_file_has_no_header(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(InvalidArgumentError, match="is empty and has no header"):
        CsvReader(tmp_path / "file", header=True).read(1)


@pytest.mark.parametrize("wrong", ["", "ab", '"', "\n", "\r"])
def test_wrong_delimiters(wrong: str) -> None:
    with pytest.raises(InvalidArgumentError, match="field_delim must be one character"):
        CsvReader("x", field_delim=wrong)


WHERE = "CsvDataset: 'a.csv'"


def field(dtype: Any, default: Any = None, required: bool = False) -> tuple[Any, Any, bool]:
    return dtype, default, required


def convert(row: list[str], fields: list[Any], **options: Any) -> tuple[Any, ...]:
    texts = [text.encode("utf-8", "surrogateescape") for text in row]
    (element,) = RowConverter(fields, **options).convert([texts], WHERE).elements()
    return tuple(element)


def test_values_have_the_type_of_their_column() -> None:
    fields = [field(dtype, required=True) for dtype in (INT, LONG, FLOAT, DOUBLE, STRING)]
    values = convert(["1", "-2", "2.5", "1e3", "a\udcff"], fields)
    assert values == (1, -2, 2.5, 1000.0, b"a\xff")
    assert [type(v) for v in values] == [np.int32, np.int64, np.float32, np.float64, bytes]


@pytest.mark.parametrize(
    ("dtype", "default", "expected"),
    [
        (INT, 7, np.int32(7)),
        (FLOAT, 9, np.float32(9)),
        (STRING, "d", b"d"),
        (STRING, "é", "é".encode()),
        (STRING, b"\xff", b"\xff"),
    ],
)
def test_an_empty_field_takes_its_default(dtype: Any, default: Any, expected: Any) -> None:
    (value,) = convert([""], [field(dtype, default)])
    assert value == expected
    assert type(value) is type(expected)


def test_na_value_counts_as_empty() -> None:
    fields = [field(INT, 7), field(STRING, "d"), field(STRING, "d")]
    assert convert(["NA", "NA", ""], fields, na_value="NA") == (7, b"d", b"d")


@pytest.mark.parametrize("text", ["", "NA"])
def test_a_required_field_must_be_there(text: str) -> None:
    with pytest.raises(
        InvalidArgumentError, match="'a.csv': field 1 is required but missing; give"
    ):
        convert(["1", text], [field(INT, 0), field(FLOAT, required=True)], na_value="NA")


def test_selected_columns() -> None:
    fields = [field(INT, required=True), field(STRING, "")]
    assert convert(["1", "x", "b"], fields, select=[0, 2]) == (1, b"b")
    assert convert(["1", "b"], fields, select=[]) == (1, b"b")


@pytest.mark.parametrize(
    ("row", "select"), [(["1"], None), (["1", "2", "3"], None), (["1", "2"], [0, 5]), ([""], None)]
)
def test_a_row_of_another_length(row: list[str], select: list[int] | None) -> None:
    with pytest.raises(InvalidArgumentError, match="row has . (selected )?fields, but .* has 2:"):
        convert(row, [field(INT, 0), field(INT, 0)], select=select)


@pytest.mark.parametrize(
    ("dtype", "text"),
    [
        *[(INT, text) for text in ("x", "1.5", "1_000", "0x10", "٣", "2147483648", "-2147483649")],
        *[(LONG, text) for text in ("9223372036854775808", "+", "1 2")],
        *[(FLOAT, text) for text in ("x", "1_0.5", "1,5", "e5", "٣", ".", "--1")],
        (DOUBLE, "1.5x"),
    ],
)
def test_bad_numbers(dtype: Any, text: str) -> None:
    with pytest.raises(InvalidArgumentError, match=f"field 0 is not a valid {dtype.name}: '"):
        convert([text], [field(dtype, 0)])


@pytest.mark.parametrize(
    ("dtype", "text", "expected"),
    [
        (INT, " +5 ", 5),
        (INT, "-2147483648", -(2**31)),
        (LONG, "9223372036854775807", 2**63 - 1),
        (FLOAT, " .5 ", 0.5),
        (FLOAT, "5.", 5.0),
        (FLOAT, "-INF", -np.inf),
        (FLOAT, "infinity", np.inf),
        (FLOAT, "1e50", np.inf),
        (FLOAT, "1e5", 1e5),
        (DOUBLE, "1E-3", 0.001),
    ],
)
def test_unusual_numbers(dtype: Any, text: str, expected: float) -> None:
    (value,) = convert([text], [field(dtype, 0)])
    assert value == expected
    assert value.dtype == dtype.dtype


def test_not_a_number() -> None:
    (value,) = convert(["nan"], [field(FLOAT, 0)])
    assert np.isnan(value)


NUMBERS = ["1", "-2", " 3 ", "2.5", "1e3", "1E50", ".5", "5.", "+4", "9" * 19]
BIG = ["2147483648", "-2147483649", "9" * 20]
ODD = ["", "NA", "nan", "-Inf", "infinity", "1_0", "\t7", "\x1c8", "٣", "x", "1 2", "e5", "+", *BIG]
KINDS = ["int32", "int64", "float32", "float64", "string"]
TEXTS = [NUMBERS[:3], NUMBERS, NUMBERS + ODD, *([*NUMBERS[:3], odd] for odd in ODD)]


@st.composite
def tables(draw: st.DrawFn) -> tuple[list[str], list[list[str]]]:
    """Types of columns, and rows that mostly have them."""
    kinds = draw(st.lists(st.sampled_from(KINDS), min_size=1, max_size=3))
    texts = st.sampled_from(draw(st.sampled_from(TEXTS)))
    rows = st.lists(texts, min_size=len(kinds), max_size=len(kinds))
    uneven = st.lists(texts, min_size=1, max_size=4)
    return kinds, draw(st.lists(draw(st.sampled_from([rows, rows, rows | uneven])), min_size=1))


def convert_singly(text: str, kind: str, default: Any, na_value: str) -> Any:
    """What the field of one row holds, by the rules of TensorFlow; ValueError if it is wrong."""
    dtype = as_dtype(kind).dtype
    if text in ("", na_value):
        if default is None:
            raise ValueError("is required but missing; give it a default in record_defaults")
        return default if kind == "string" else dtype.type(default)
    if kind == "string":
        return text.encode()
    is_integer = re.fullmatch(r"\s*[+-]?[0-9]+\s*", text, re.ASCII) is not None
    if dtype.kind == "f":
        number = r"([0-9]+\.?[0-9]*|\.[0-9]+)(e[+-]?[0-9]+)?|inf(inity)?|nan"
        if re.fullmatch(rf"\s*[+-]?({number})\s*", text, re.ASCII | re.IGNORECASE):
            with np.errstate(over="ignore"):
                return dtype.type(float(text))
    elif is_integer and np.iinfo(dtype).min <= int(text) <= np.iinfo(dtype).max:
        return dtype.type(int(text))
    raise ValueError(f"is not a valid {dtype}: {text!r}")


def convert_row(
    row: list[str], kinds: list[str], required: bool, na_value: str, select: list[int] | None
) -> tuple[Any, ...]:
    chosen = row if select is None else [row[i] for i in select if i < len(row)]
    if len(chosen) != len(kinds):
        what = "fields" if select is None else "selected fields"
        raise ValueError(
            f"{WHERE}: the row has {len(chosen)} {what}, but record_defaults has {len(kinds)}: "
            f"{reprlib.repr(row)}"
        )
    values: list[Any] = []
    try:
        for text, kind in zip(chosen, kinds, strict=True):
            default = None if required else {"string": b"d"}.get(kind, 7)
            values.append(convert_singly(text, kind, default, na_value))
    except ValueError as error:
        raise ValueError(f"{WHERE}: field {len(values)} {error}") from None
    return tuple(values)


@given(
    table=tables(),
    required=st.booleans(),
    select=st.none() | st.sets(st.integers(0, 2), min_size=1).map(sorted),
    na_value=st.sampled_from(["", "NA"]),
)
@examples(200)
def test_columns_are_converted_as_row_by_row(
    table: tuple[list[str], list[list[str]]],
    required: bool,
    select: list[int] | None,
    na_value: str,
) -> None:
    kinds, rows = table
    fields = [(as_dtype(name), b"d" if name == "string" else 7, required) for name in kinds]
    select = None if select is None or len(select) != len(kinds) else select
    expected: list[Any] = []
    try:
        for row in rows:
            expected.append(convert_row(row, kinds, required, na_value, select))
        problem = ""
    except ValueError as error:
        problem = str(error)
    converter = RowConverter(fields, na_value, select)
    found: list[Any] = []
    message = ""
    try:
        while len(found) < len(rows):
            left = [[text.encode() for text in row] for row in rows[len(found) :]]
            found += converter.convert(left, WHERE).elements()
    except InvalidArgumentError as error:
        message = error.message
    assert repr(found) == repr(expected)
    assert message == problem


def test_rows_of_other_lengths_than_their_neighbours_are_read() -> None:
    columns = RowConverter([field(INT, 0)], exclude=(1,))
    rows = [[b"1", b"x"], [b"2"], [b"3", b"y"]]
    found = [row for row in rows for row in columns.convert([row], "").elements()]
    assert found == [(1,), (2,), (3,)]
    assert columns.convert(rows, "").elements() == [(1,)]
    selected = RowConverter([field(INT, 0)], select=(0,))
    assert selected.convert(rows, "").elements() == [(1,), (2,), (3,)]


@pytest.mark.parametrize("limit", [1, 3, 1000])
def test_bad_rows_cost_only_themselves(tmp_path: Path, limit: int) -> None:
    texts = ["x,1" if number % 7 == 3 else f"{number},1" for number in range(300)]
    (tmp_path / "file").write_text("\n".join(texts))
    dtypes = ((as_dtype("int32"), None, True), (as_dtype("int32"), None, True))
    reader = CsvReader(tmp_path / "file", columns=(dtypes,))
    found: list[int] = []
    while not reader.has_ended:
        try:
            read: Any = reader.read(limit)
            found += [] if not read else read.chunk.columns[0].tolist()
        except InvalidArgumentError as error:
            found.append(-int(error.message.split("line ")[1].split()[0]))
    assert found == [-number - 1 if number % 7 == 3 else number for number in range(300)]


def test_a_row_of_several_lines_that_is_no_element_is_left_out_whole(tmp_path: Path) -> None:
    (tmp_path / "file").write_text('1,"a\nb"\nx,"c\nd"\n2,e\n')
    rows = CsvDataset(str(tmp_path / "file"), [np.int32, b""], on_error="skip")
    assert list(rows) == [(1, b"a\nb"), (2, b"e")]


def test_the_name_of_a_dtype_as_a_default_causes_a_warning(tmp_path, caplog):
    (tmp_path / "rows.csv").write_text("1,x\n,y\n")
    (_, empty) = CsvDataset(str(tmp_path / "rows.csv"), ["int32", "none"])
    assert empty == (b"int32", b"y")
    (record,) = caplog.records
    assert "has the text 'int32', which makes a column of strings" in record.getMessage()
