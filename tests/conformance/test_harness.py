"""The harness itself: what counts as equal, and that the list of deviations stays honest."""

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock import errors
from tests.conformance import apart, deviations, oracle_helpers, report, tensorflow_names
from tests.conformance.cases import EDITS, FOLDER, PINS, Case, dumps, load
from tests.conformance.compare import Difference, against, differences
from tests.conformance.deviations import (
    Deviation,
    faults,
    read_deviations,
    read_pins,
    value_at,
    without_words,
)
from tests.conformance.programs import Outcome, run

VALUE_ERROR = {"error": "ValueError", "bases": []}
INVALID = {"error": "InvalidArgumentError", "bases": ["OpError"]}


def case(expected: Any = None, source: str = "out = None", **fields: Any) -> Case:
    return Case("area/name", source, expected, fields.pop("compare", "exact"), **fields)


def error(kind: type[Exception]) -> dict[str, Any]:
    encoded: dict[str, Any] = oracle_helpers.E(kind("some words"))
    return encoded


@pytest.mark.parametrize(
    ("expected", "got"),
    [
        (1.0, 1.0 + 1e-7),
        (1e9, 1e9 + 1),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        (VALUE_ERROR, error(ValueError)),
        (VALUE_ERROR, error(errors.InvalidArgumentError)),
        ({"error": "TypeError"}, error(errors.InvalidTypeError)),
        ([{"build": INVALID}], [{"build": error(errors.InvalidArgumentError)}]),
        ({"$matches": "<Data.*>"}, "<Dataset batch>"),
    ],
)
def test_equal_answers(expected: Any, got: Any) -> None:
    assert differences(expected, got) == []


@pytest.mark.parametrize(
    ("expected", "got", "path"),
    [
        (1, 1.0, ""),
        (1, True, ""),
        (1.0, 1.00001, ""),
        ([1, 2], [2, 1], "0"),
        ({"a": [1, 2]}, {"a": [1]}, "a"),
        ({"a": {"b": 1}}, {"a": {}}, "a.b"),
        ({"a": {}}, {"a": {"b": None}}, "a.b"),
        (INVALID, error(ValueError), ""),
        (VALUE_ERROR, error(TypeError), ""),
        ([{"build": INVALID}], [error(errors.InvalidArgumentError)], "0"),
        ([INVALID], [{"build": error(errors.InvalidArgumentError)}], "0"),
        ({"ok": 1}, error(ValueError), ""),
        ({"$matches": "<Data.*>"}, "Dataset", ""),
    ],
)
def test_different_answers(expected: Any, got: Any, path: str) -> None:
    assert differences(expected, got)[0] == Difference(path, *_at(expected, got, path))


def _at(expected: Any, got: Any, path: str) -> tuple[Any, Any]:
    return (value_at(expected, path), value_at(got, path))


def test_an_answer_that_varies_is_a_multiset_or_one_of_those_observed() -> None:
    varies = case([[1, 2], INVALID], compare="varies", also_observed=([7],))
    assert against(varies, [error(errors.InvalidArgumentError), [2, 1]]) == []
    assert against(varies, [7]) == []
    assert against(varies, [[1, 1], error(errors.InvalidArgumentError)]) != []


def judge(expected: Any, got: Any, *paths: str, pins: Any = None, **fields: Any) -> list[str]:
    rows = [Deviation("area/name", path, "", "") for path in paths]
    return faults(case(expected, **fields), Outcome(got), rows, {"area/name": pins or {}})


def test_a_difference_must_be_listed_and_pinned() -> None:
    expected, got = {"a": [1, 2], "b": 0}, {"a": [1, 3], "b": 0}
    assert judge(expected, got) == ["a.1: expected 2, got 3"]
    assert judge(expected, got, "a.1", pins={"a.1": 3}) == []
    assert judge(expected, got, "a", pins={"a": [1, 3]}) == []
    assert judge(expected, got, "*", pins={"*": got}) == []
    assert "not pinned" in judge(expected, got, "a.1")[0]
    assert "otherwise than pinned" in judge(expected, got, "a.1", pins={"a.1": 4})[0]


def test_a_listed_deviation_must_be_needed() -> None:
    assert "the answer is TensorFlow's" in judge({"a": 1}, {"a": 1}, "a", pins={"a": 1})[0]


def test_an_informative_answer_is_free_but_must_come() -> None:
    informative = case({"crash": True}, compare="informative")
    assert faults(informative, Outcome(5), [], {}) == []
    assert faults(informative, Outcome({"crash": True}, "trace"), [], {}) != []


def test_a_program_that_breaks_off_fails_unless_that_is_listed() -> None:
    broken = Outcome({"raised": error(KeyError)}, "trace")
    pins: dict[str, Any] = {"area/name": {"*": {}}}
    row = Deviation("area/name", "*", "", "")
    assert "did not reach its end" in faults(case({"a": 1}), broken, [], {})[0]
    assert "otherwise than pinned" in faults(case({"a": 1}), broken, [row], pins)[0]
    pins["area/name"]["*"] = {"raised": {"error": "KeyError"}}
    assert faults(case({"a": 1}), broken, [row], pins) == []


def test_missing_pins_are_written_and_existing_ones_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deviations, "PINS", tmp_path / "pins.json")
    rows = [Deviation("a/b", path, "", "") for path in ("x", "y.0")]
    answers = {"a/b": {"x": 1, "y": [error(ValueError)]}}
    assert deviations.pin_missing(answers, rows, {"a/b": {"x": 0}}) == ["a/b y.0"]
    written = json.loads((tmp_path / "pins.json").read_text())
    assert written == {"a/b": {"x": 0, "y.0": {"error": "ValueError"}}}


def test_the_report_names_what_passes_fails_and_hangs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    good, bad, slow = (Case(name, "out = 1", 1, "exact") for name in ("a/good", "a/bad", "a/slow"))
    outcomes = {good: Outcome(1), bad: Outcome(2), slow: Outcome({"hang": True}, "Timeout (")}
    monkeypatch.setattr(report, "load", lambda: list(outcomes))
    monkeypatch.setattr(report, "run_apart", lambda cases, _: ((c, outcomes[c]) for c in cases))
    assert report.main(["a/"]) == 1
    printed = capsys.readouterr().out
    assert "pass  a/good\nFAIL  a/bad\n        *: expected 1, got 2\nhang  a/slow" in printed
    assert "1 FAIL, 1 hang, 1 pass of 3" in printed
    assert report.main(["good"]) == 0
    assert "out = 1\n\nwrong" in report.describe(bad, outcomes[bad], ["wrong"])


def test_values_are_found_where_keys_have_dots() -> None:
    assert value_at({"a": 0, "a.b": {"c": [5, 6]}}, "a.b.c.1") == 6


def test_pins_keep_the_kind_of_an_error_only() -> None:
    assert without_words([{"ok": error(ValueError)}]) == [{"ok": {"error": "ValueError"}}]


def test_the_list_of_deviations_names_existing_cases_once_and_gives_reasons() -> None:
    rows = read_deviations()
    places = [(row.case, row.path) for row in rows]
    assert {row.case for row in rows} <= {one.id for one in load()}
    assert len(set(places)) == len(places)
    assert all(row.instead and row.reason for row in rows)
    pins = {(name, path) for name, paths in read_pins().items() for path in paths}
    assert pins <= set(places), "pins of deviations that are not listed"


def test_every_table_row_with_a_case_is_read() -> None:
    text = "| `a/b` | `c.d` | this | that |\n| case | path | x | y |\n|---|---|---|---|"
    assert read_deviations(text) == [Deviation("a/b", "c.d", "this", "that")]


def test_cases_are_sorted_unique_and_edits_apply() -> None:
    for path in sorted(set(FOLDER.glob("*.json")) - {PINS}):
        ids = [one["id"] for one in json.loads(path.read_text())]
        assert ids == sorted(set(ids))
    assert set(EDITS) <= {one.id for one in load()}


def test_dumps_is_json_on_few_lines() -> None:
    value = {"a": list(range(80)), "b": [{"c": 1}], "d": {}}
    assert json.loads(dumps(value)) == value
    assert dumps({"b": [1, {"c": None}]}) == '{"b": [1, {"c": null}]}'


def test_an_exception_that_escapes_a_program_is_an_answer() -> None:
    outcome = run(case(source="out = tf.no_such_name"))
    assert outcome.answer["raised"]["error"] == "AttributeError"
    assert "tf.no_such_name" in outcome.trace


def test_a_program_sees_helpers_modules_and_its_own_temporary_folder() -> None:
    source = "p = tmpdir()\nwarnings_do_not_matter = np.int64(1) // np.int64(0)\nout = base(p)"
    assert run(case(source=source)) == Outcome("TMP/")


def test_a_crash_and_a_hang_are_answers() -> None:
    crash = apart.death(-11, "Fatal Python error")
    hang = apart.death(1, "noise\nTimeout (0:00:20)!\nThread 0x1")
    assert (crash.answer, hang.answer) == ({"crash": True, "rc": -11}, {"hang": True})
    assert hang.trace.startswith("Timeout")


def test_a_program_runs_apart() -> None:
    cases = [one for one in load() if one.own_process][:2]
    assert [one for one, _ in apart.run_apart(cases)] == cases


def test_the_product_comes_before_the_names_of_the_harness() -> None:
    product = type("Product", (), {"fill": "own", "strings": type("S", (), {"join": 1})})
    names = tensorflow_names.Names(product, {"fill": "extra", "strings": {"as_string": 2}, "x": 3})
    assert (names.fill, names.x, names.strings.join, names.strings.as_string) == ("own", 3, 1, 2)
    with pytest.raises(AttributeError, match=r"tf\.strings\.no: neither penstock nor the harness"):
        _ = names.strings.no


def test_the_names_of_a_program_travel() -> None:
    for names in (tensorflow_names.namespace(), tensorflow_names.namespace().io):
        assert pickle.loads(pickle.dumps(names)).__dict__ == names.__dict__


def test_tensor_operations_have_tensorflows_dtypes() -> None:
    names = tensorflow_names
    assert names.fill([2], 3).dtype == np.int32
    assert names.fill([np.int64(2)], np.int64(3)).tolist() == [3, 3]
    assert names.concat([np.zeros(1, np.int64), [np.int64(5)]], 0).dtype == np.int64
    assert names.reshape([1.0, 2.0], [2, 1]).dtype == np.float32
    assert names.as_string(np.array([1, 2])).tolist() == [b"1", b"2"]
    assert names.as_string(np.int32(7)) == b"7"
    assert names.cond(np.True_, lambda: 1, lambda: 2) == 1


def test_py_function_gives_its_declared_dtype() -> None:
    result = tensorflow_names.py_function(lambda x: x + 5, [np.int32(1)], np.int64)
    assert (result, result.dtype) == (6, np.int64)
    pair = tensorflow_names.py_function(lambda: (1, "a"), [], [np.float32, "string"])
    assert (pair[0].dtype, pair[1]) == (np.float32, b"a")


def test_ragged_values_are_rows() -> None:
    constant = tensorflow_names.ragged_constant([[1], [2, 3], []])
    assert (constant.values.dtype, constant.to_list()) == (np.int32, [[1], [2, 3], []])
    assert tensorflow_names.ragged_constant([[[1], []], []]).to_list() == [[[1], []], []]
    counted = tensorflow_names.ragged_range([np.int64(0), np.int64(2)])
    assert (counted.values.dtype, counted.to_list()) == (np.int64, [[], [0, 1]])


def test_a_checkpoint_keeps_variables_by_their_names(tmp_path: Path) -> None:
    names = tensorflow_names.namespace()
    variable = names.Variable([1.0, 2.0])
    path = names.train.Checkpoint(v=variable).save(str(tmp_path / "c"))
    variable.assign([3.0, 4.0])
    names.train.Checkpoint(v=variable).restore(path)
    assert variable.numpy().tolist() == [1.0, 2.0]
    assert names.train.list_variables(path) == [("v/.ATTRIBUTES/VARIABLE_VALUE", [2])]


def test_what_a_program_checks_fails_as_tensorflow_would() -> None:
    assert tensorflow_names.ensure_shape(np.zeros((2, 3)), [None, 3]).shape == (2, 3)
    with pytest.raises(errors.InvalidArgumentError, match=r"ensure_shape: the shape is \(\)"):
        tensorflow_names.ensure_shape(np.int64(1), [2])
    assert tensorflow_names.check_numerics(np.float32(1), "m") == 1
    with pytest.raises(errors.InvalidArgumentError, match="check_numerics: m: got inf"):
        tensorflow_names.check_numerics(np.float32(np.inf), "m")
    with pytest.raises(errors.UnimplementedError, match="penstock has no sparse tensors"):
        tensorflow_names.no_sparse([[0, 1]])
