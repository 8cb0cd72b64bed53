"""The project's own files agree: one version, the claims of pyproject.toml, the workflows."""

import ast
import re
import tomllib
from pathlib import Path

import pytest

import penstock
from scripts.lowest_versions import lowest

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


@pytest.mark.parametrize("dependency", PROJECT["dependencies"])
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


def returns_early(test: ast.FunctionDef) -> bool:
    """Whether a branch of the test returns, so that some parameters check nothing."""
    branches = [each for each in test.body if isinstance(each, ast.If)]
    return any(isinstance(branch.body[-1], ast.Return) for branch in branches)


def test_no_test_returns_early() -> None:
    found = [
        f"{name}::{node.name}"
        for name, source in TESTS.items()
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
        if returns_early(node)
    ]
    assert found == [], "filter the parameters instead"
