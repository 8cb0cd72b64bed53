"""The house rules of ARCHITECTURE.md that a program can check, read off the sources."""

import ast
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from scripts.architecture_map import BEGIN, END, PACKAGE, PAGE, first_sentence, update

# A room imports from rooms of earlier lines and from itself; those of one line are strangers.
ORDER = (
    ("errors", "version"),
    ("element",),
    ("plan",),
    ("engine",),
    ("service.protocol",),
    ("service.logic",),
    ("service.host",),
    ("service",),
    ("data",),
    ("distribute",),
    ("shim", "config", "random", "io", "experimental", "launch", "dashboard", "cli"),
    ("__init__", "__main__"),
)
RANK = {room: rank for rank, line in enumerate(ORDER) for room in line}

# Heavy dependencies and optional frameworks: the only things that a function may import.
LOADED_WHEN_NEEDED = {
    *("cloudpickle", "fsspec", "google_crc32c", "ml_dtypes", "rich", "click", "msgspec"),
    *("pyarrow", "torch", "jax", "keras", "ray", "tensorflow"),
}
# The one room of ours that is heavy: it brings msgspec along, for those who distribute a dataset.
HEAVY_ROOM = "penstock.service."
# What `import penstock` may load besides the standard library.
LOADED_AT_IMPORT = {"penstock", "numpy", "optree", "typing_extensions"}
SHAPELESS_NAMES = {"util", "helper", "common", "misc", "manager"}


def name_of(file: Path) -> str:
    """`plan.nodes` for src/penstock/plan/nodes.py; a package's door carries the package's name."""
    parts = file.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if len(parts) > 1 and parts[-1] == "__init__" else parts)


SOURCES = {name_of(file): file.read_text(encoding="utf-8") for file in PACKAGE.rglob("*.py")}
TREES = {name: ast.parse(source) for name, source in SOURCES.items()}


def room_of(module: str) -> str | None:
    """The longest prefix of a module's name that is a room."""
    parts = module.split(".")
    prefixes = (".".join(parts[:length]) for length in range(len(parts), 0, -1))
    return next((prefix for prefix in prefixes if prefix in RANK), None)


def imported(node: ast.AST) -> Iterator[str]:
    """Full names of what one import statement brings in; empty for other nodes."""
    match node:
        case ast.Import(names):
            yield from (alias.name for alias in names)
        case ast.ImportFrom(module, names, 0):
            yield from (f"{module}.{alias.name}" for alias in names)
        case ast.ImportFrom():
            yield "penstock.relative"


def own(full_name: str) -> str | None:
    """The module of ours that a name comes from, without `penstock.`; None if it is not ours."""
    top, *parts = full_name.split(".")
    if top != "penstock":
        return None
    prefixes = (".".join(parts[:length]) for length in range(len(parts), 0, -1))
    return next((prefix for prefix in prefixes if prefix in TREES), "__init__")


def own_imports(module: str) -> set[str]:
    names = (name for node in ast.walk(TREES[module]) for name in imported(node))
    return {target for name in names if (target := own(name)) is not None}


def out_of_order(module: str, target: str) -> bool:
    here, there = room_of(module), room_of(target)
    assert here, f"{module} is in no room; give it a line in ORDER"
    assert there, f"{target} is in no room; give it a line in ORDER"
    return here != there and RANK[there] >= RANK[here]


@pytest.mark.parametrize("module", sorted(TREES))
def test_imports_only_from_rooms_to_the_left(module: str) -> None:
    assert [target for target in own_imports(module) if out_of_order(module, target)] == []


def test_no_import_cycles() -> None:
    list(TopologicalSorter({name: own_imports(name) - {name} for name in TREES}).static_order())


@pytest.mark.parametrize("module", sorted(TREES))
def test_functions_import_only_what_is_heavy(module: str) -> None:
    functions = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
    inside = (
        name
        for function in ast.walk(TREES[module])
        if isinstance(function, functions)
        for node in ast.walk(function)
        for name in imported(node)
    )
    light = (name for name in inside if not name.startswith(HEAVY_ROOM))
    assert [name for name in light if name.split(".")[0] not in LOADED_WHEN_NEEDED] == []


@pytest.mark.parametrize("module", sorted(TREES))
def test_no_shapeless_names(module: str) -> None:
    words = (word.removesuffix("s") for word in re.split(r"[._]", module))
    assert SHAPELESS_NAMES.isdisjoint(words)


def test_no_two_classes_of_one_name() -> None:
    homes = defaultdict(list)
    for module, tree in TREES.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                homes[node.name].append(module)
    assert {name: where for name, where in homes.items() if len(where) > 1} == {}


def test_import_loads_only_numpy_and_optree() -> None:
    program = (
        "import sys; before = set(sys.modules); import penstock;"
        "print(*{name.split('.')[0] for name in set(sys.modules) - before})"
    )
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert loaded.returncode == 0, loaded.stderr
    # numpy.random is compiled by Cython, which leaves modules of its own behind.
    names = {name for name in loaded.stdout.split() if "cython" not in name}
    assert names - set(sys.stdlib_module_names) <= LOADED_AT_IMPORT


@pytest.mark.parametrize("module", sorted(SOURCES))
def test_every_module_has_a_door_plate(module: str) -> None:
    assert first_sentence(SOURCES[module]).endswith((".", "!", "?", ":"))


def test_map_is_fresh() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert page == update(page, PACKAGE), "the map is stale; run scripts/architecture_map.py"


def test_map_needs_its_markers() -> None:
    with pytest.raises(ValueError, match=r"the markers are missing; put back '<!-- map: begin"):
        update(f"{END} {BEGIN}", PACKAGE)


def test_files_met_by_the_element_exist() -> None:
    section = re.search(r"## Follow one element\n(.*?)\n## ", PAGE.read_text("utf-8"), re.DOTALL)
    assert section is not None
    files = re.findall(r"`([\w/]+\.py)`", section[1])
    assert len(files) >= 7
    assert [file for file in files if not (PACKAGE / file).is_file()] == []


@pytest.mark.parametrize(
    ("module", "target", "wrong"),
    [
        ("plan.nodes", "element.spec", False),
        ("plan.nodes", "plan.functions", False),
        ("plan.nodes", "engine.run", True),
        ("service.logic.worker", "service.protocol.frames", False),
        ("service.logic.worker", "service.host.servers", True),
        ("service.protocol.frames", "service.logic.worker", True),
        ("service.host.servers", "engine.run", False),
        ("data.dataset", "service.host.connect", False),
        ("service.host.servers", "data.dataset", True),
        ("shim", "cli", True),
        ("__init__", "cli", False),
        ("errors", "__init__", True),
    ],
)
def test_the_order_itself(module: str, target: str, wrong: bool) -> None:
    assert out_of_order(module, target) is wrong
