"""The project's own files agree: one version, the claims of pyproject.toml, the workflows."""

import ast
import re
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import penstock
from scripts.lowest_versions import claimed_dependencies, lowest

ROOT = Path(__file__).resolve().parent.parent
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PROJECT = PYPROJECT["project"]
WORKFLOWS = {
    file.name: file.read_text(encoding="utf-8")
    for file in (ROOT / ".github" / "workflows").glob("*.yml")
}
TESTS = {
    file.relative_to(ROOT).as_posix(): file.read_text(encoding="utf-8")
    for file in (ROOT / "tests").rglob("*.py")
}
# A trainer at work, and a server that answers later than a client's time limit.
SLEEPING = {
    "tests/integration/chaos/client.py",
    "tests/service/host/test_control_connection_client.py",
}
HOOKS = (ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8")


def test_the_version_is_in_one_place() -> None:
    assert "version" not in PROJECT
    assert PROJECT["dynamic"] == ["version"]
    source = ROOT / PYPROJECT["tool"]["hatch"]["version"]["path"]
    # Hatch reads the first line of this form.
    found = re.search(r'^VERSION = "(.+)"$', source.read_text(encoding="utf-8"), re.MULTILINE)
    assert found is not None
    assert found[1] == penstock.__version__


def test_the_changelog_has_this_version_and_a_place_for_the_next() -> None:
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    headings = re.findall(r"^## \[(.+?)\]", changes, re.MULTILINE)
    assert headings[:2] == ["Unreleased", penstock.__version__]


def test_every_claimed_python_is_tested() -> None:
    prefix = "Programming Language :: Python :: 3."
    claimed = {each.removeprefix(prefix) for each in PROJECT["classifiers"] if prefix in each}
    matrix = re.search(r"python: \[(.*)\]", WORKFLOWS["check.yml"])
    assert matrix is not None
    assert {f'"3.{minor}"' for minor in claimed} <= set(matrix[1].split(", "))


@pytest.mark.parametrize("text", [*WORKFLOWS.values(), HOOKS], ids=[*WORKFLOWS, "hooks"])
def test_every_command_exists(text: str) -> None:
    commands = re.findall(r"(?<![\w/])(?:scripts|\.ci)/\w+", text)
    assert commands
    assert [command for command in commands if not (ROOT / command).is_file()] == []


@pytest.mark.parametrize("name", ["simulate", "chaos", "search"])
def test_every_search_runs_at_night(name: str) -> None:
    assert f"scripts/{name}" in WORKFLOWS["nightly.yml"]


@pytest.mark.parametrize("dependency", claimed_dependencies())
def test_every_dependency_has_a_lowest_version(dependency: str) -> None:
    assert re.fullmatch(r"[\w-]+==[\d.]+", lowest(dependency))


@pytest.mark.parametrize("dependency", ["numpy", "numpy<3", "numpy>=2,<3"])
def test_a_dependency_without_a_lowest_version_is_refused(dependency: str) -> None:
    with pytest.raises(ValueError, match="is not of the form name>=version"):
        lowest(dependency)


def test_the_spelling_check_is_installed_by_the_project() -> None:
    tools = PROJECT["optional-dependencies"]["test"]
    assert any(tool.startswith("codespell") for tool in tools)
    assert "codespell" in (ROOT / "scripts" / "check").read_text(encoding="utf-8")


def test_only_tests_about_time_sleep() -> None:
    calls = re.compile(r"^[^\"']*\btime\.sleep\(", re.MULTILINE)
    assert {name for name, source in TESTS.items() if calls.search(source)} == SLEEPING


Test = ast.FunctionDef | ast.AsyncFunctionDef


def find_tests(source: str) -> Iterator[Test]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, Test) and node.name.startswith("test_"):
            yield node


def find_own(node: ast.AST) -> Iterator[ast.AST]:
    """What is in a test, without the functions and classes that it defines."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, Test | ast.Lambda | ast.ClassDef):
            yield child
            yield from find_own(child)


def returns(test: Test) -> bool:
    """Whether a test may end before its last line, without a failure."""
    return any(isinstance(node, ast.Return) for node in find_own(test))


def always_holds(test: Test) -> bool:
    """Whether an assertion of the test is true whatever the code does."""
    return any(is_true(node.test) for node in find_own(test) if isinstance(node, ast.Assert))


def is_true(condition: ast.expr) -> bool:
    match condition:
        case ast.Constant(value):
            return bool(value)
        case ast.Tuple(parts) | ast.List(parts):
            return bool(parts)
        case ast.JoinedStr() | ast.Lambda() | ast.GeneratorExp():
            return True
        case ast.BoolOp(ast.Or(), parts):
            return any(map(is_true, parts))
        case ast.Compare(left, [ast.Eq() | ast.Is() | ast.LtE() | ast.GtE()], [right]):
            # Two calls may return different values: that is what such a test is about.
            has_call = any(isinstance(node, ast.Call) for node in ast.walk(left))
            return not has_call and ast.dump(left) == ast.dump(right)
    return False


@pytest.mark.parametrize(
    ("is_wrong", "remedy"),
    [
        (returns, "filter the parameters, or use hypothesis.assume or hypothesis.reject"),
        (always_holds, "compare what the code returns with what it must return"),
    ],
)
def test_every_test_can_fail(is_wrong: Callable[[Test], bool], remedy: str) -> None:
    found = [
        f"{name}::{test.name}"
        for name, source in TESTS.items()
        for test in find_tests(source)
        if is_wrong(test)
    ]
    assert found == [], remedy


@pytest.mark.parametrize(
    ("body", "is_wrong"),
    [
        ("if x: return", returns),
        ("for x in y:\n        if x: return\n        assert f(x)", returns),
        ("try: f()\n    except OSError: return", returns),
        ("assert x == x", always_holds),
        ("assert x.y is x.y", always_holds),
        ("assert (x == 1, 'message')", always_holds),
        ("assert f(x) or True", always_holds),
        ("assert (f(x) for x in y)", always_holds),
        ("if x:\n        assert 'text'", always_holds),
    ],
)
def test_what_cannot_fail_is_found(body: str, is_wrong: Callable[[Test], bool]) -> None:
    (test,) = find_tests(f"def test_name(x, y):\n    {body}\n")
    assert is_wrong(test)


@pytest.mark.parametrize(
    "body",
    [
        "assert f(x) == f(x)",
        "def f():\n        return x\n    assert f() == 1",
        "assert x == y or f(x)",
        "assert x",
    ],
)
def test_what_can_fail_is_not_found(body: str) -> None:
    (test,) = find_tests(f"def test_name(x, y):\n    {body}\n")
    assert not returns(test)
    assert not always_holds(test)
