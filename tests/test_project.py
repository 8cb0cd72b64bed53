"""The project's own files agree: one version, the claims of pyproject.toml, the workflows."""

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
HOOKS = (ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8")


def test_the_version_is_in_one_place() -> None:
    assert "version" not in PROJECT
    assert PROJECT["dynamic"] == ["version"]
    source = ROOT / PYPROJECT["tool"]["hatch"]["version"]["path"]
    # Hatch reads the first line of this form.
    found = re.search(r'^VERSION = "(.+)"$', source.read_text(encoding="utf-8"), re.MULTILINE)
    assert found is not None
    assert found[1] == penstock.__version__


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
