"""The house rules of ARCHITECTURE.md that a program can check, read off the sources."""

import ast
import functools
import json
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from graphlib import TopologicalSorter
from itertools import pairwise
from pathlib import Path

import pytest

from scripts.architecture_map import BEGIN, END, PACKAGE, PAGE, ROOT, first_sentence, update

# A room imports from rooms of earlier lines and from itself, not from other rooms of its line.
ORDER = (
    ("missing_names", "version"),
    ("errors",),
    ("element",),
    ("plan",),
    ("engine",),
    ("service.protocol",),
    ("service.logic",),
    ("service.host",),
    ("service",),
    ("launch",),
    ("delivery",),
    ("data",),
    ("distribute",),
    ("shim", "config", "random", "io", "experimental", "cli"),
    ("__init__", "__main__"),
    ("tf",),
)
RANK = {room: rank for rank, line in enumerate(ORDER) for room in line}

# Heavy dependencies and optional frameworks: the only things that a function may import.
LOADED_WHEN_NEEDED = {
    *("cloudpickle", "fsspec", "google_crc32c", "ml_dtypes", "rich", "click", "msgspec"),
    *("asyncio", "bz2", "tarfile", "tempfile", "zipfile", "pyarrow", "torch", "jax", "keras"),
    *("google", "opentelemetry", "ray", "sqlite3", "tensorflow"),
}
# What is heavy of ours: it loads msgspec, which only distributed datasets need, or cryptography
# or rich.
HEAVY_ROOMS = (
    *("penstock.service.", "penstock.launch."),
    *("penstock.cli.certificates", "penstock.cli.doctor", "penstock.cli.top"),
)
# What `import penstock` may load besides the standard library.
LOADED_AT_IMPORT = {"penstock", "numpy", "optree", "typing_extensions"}
# What `import penstock` must not load beyond NumPy: each takes several milliseconds.
HEAVY_MODULES = {
    *("argparse", "asyncio", "email", "http", "multiprocessing", "sqlite3", "ssl"),
    *("tempfile", "unittest", "xml", "numpy.random", "numpy.ma", "numpy.polynomial", "numpy.fft"),
    *("numpy.testing", "numpy.ctypeslib", "concurrent.futures.process", "importlib.metadata"),
    *("cloudpickle", "fsspec", "google_crc32c", "msgspec", "cryptography", "ml_dtypes"),
    *("jax", "keras", "tensorflow", "torch", "zipfile"),
    *("datasets", "pandas", "polars", "pyarrow"),
}
# What `service.logic` may import besides itself, the protocol and the errors: nothing that acts,
# waits, or reads a clock.
PURE_MODULES = {
    *("__future__", "abc", "array", "base64", "bisect", "collections", "dataclasses", "enum"),
    *("functools", "hashlib", "heapq", "itertools", "math", "operator", "re", "struct", "typing"),
    *("zlib", "msgspec", "numpy"),
}
TESTS = ROOT / "tests"
SHAPELESS_NAMES = {"util", "helper", "common", "misc", "manager"}


def name_of(file: Path) -> str:
    """`plan.nodes` for src/penstock/plan/nodes.py; a package's door carries the package's name."""
    parts = file.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if len(parts) > 1 and parts[-1] == "__init__" else parts)


SOURCES = {name_of(file): file.read_text(encoding="utf-8") for file in PACKAGE.rglob("*.py")}


class _Trees(Mapping[str, ast.Module]):
    """The syntax trees of all modules, parsed when they are first needed."""

    def __getitem__(self, module: str) -> ast.Module:
        return parse(SOURCES[module])

    def __iter__(self) -> Iterator[str]:
        return iter(SOURCES)

    def __len__(self) -> int:
        return len(SOURCES)


parse = functools.cache(ast.parse)
TREES = _Trees()


def room_of(module: str) -> str | None:
    """The longest prefix of a module's name that is a room."""
    parts = module.split(".")
    prefixes = (".".join(parts[:length]) for length in range(len(parts), 0, -1))
    return next((prefix for prefix in prefixes if prefix in RANK), None)


def find_imports(node: ast.AST) -> Iterator[str]:
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
    names = (name for node in ast.walk(TREES[module]) for name in find_imports(node))
    return {target for name in names if (target := own(name)) is not None}


def out_of_order(module: str, target: str) -> bool:
    here, there = room_of(module), room_of(target)
    assert here, f"{module} is in no room; give it a line in ORDER"
    assert there, f"{target} is in no room; give it a line in ORDER"
    return here != there and RANK[there] >= RANK[here]


def test_modules_import_only_from_rooms_to_the_left() -> None:
    imports = [(module, target) for module in TREES for target in own_imports(module)]
    assert [(module, target) for module, target in imports if out_of_order(module, target)] == []


def test_no_import_cycles() -> None:
    list(TopologicalSorter({name: own_imports(name) - {name} for name in TREES}).static_order())


def imported_in_functions(module: str) -> Iterator[str]:
    for function in ast.walk(TREES[module]):
        if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            for node in ast.walk(function):
                yield from find_imports(node)


def is_heavy(name: str) -> bool:
    return name.startswith(HEAVY_ROOMS) or name.split(".")[0] in LOADED_WHEN_NEEDED


def test_functions_import_only_what_is_heavy() -> None:
    inside = [(module, name) for module in TREES for name in imported_in_functions(module)]
    assert [(module, name) for module, name in inside if not is_heavy(name)] == []


def test_no_shapeless_names() -> None:
    words = {word.removesuffix("s") for module in TREES for word in re.split(r"[._]", module)}
    assert words & SHAPELESS_NAMES == set()


def test_no_two_classes_of_one_name() -> None:
    homes = defaultdict(list)
    for module, tree in TREES.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                homes[node.name].append(module)
    assert {name: where for name, where in homes.items() if len(where) > 1} == {}


IRREGULAR = (
    "begun|broken|built|chosen|drawn|forbidden|found|frozen|given|gone|held|hidden|kept|known|lent"
    "|lost|made|said|seen|sent|shown|stuck|taken|told|rewritten|unknown|written"
)
PARTICIPLE = re.compile(rf"_*([A-Za-z][a-z]*[^e]ed|{IRREGULAR}|{IRREGULAR.title()})")
KNOWN_NAMES = {"Drawn", "Failed", "Mirrored", "Ported", "Ragged", "Saved", "searchsorted"}
"""Names that users, TensorFlow, or plans and messages of other releases know."""


def says_only_what_was_done(node: ast.AST) -> bool:
    """Whether a class or function is a bare participle, which does not say what it is."""
    match node:
        case ast.FunctionDef(decorator_list=decorators):
            # A property may be one: `stream.closed`.
            kinds = {ast.unparse(decorator) for decorator in decorators}
            known = {"property", "cached_property", "functools.cached_property"}
            return kinds.isdisjoint(known) and PARTICIPLE.fullmatch(node.name) is not None
        case ast.ClassDef():
            return PARTICIPLE.fullmatch(node.name) is not None
    return False


def find_bare_participles(trees: Iterable[ast.Module]) -> set[str]:
    return {
        node.name
        for tree in trees
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and says_only_what_was_done(node)
    }


def test_names_are_no_bare_participles() -> None:
    assert find_bare_participles(TREES.values()) <= KNOWN_NAMES


NAMES_OF_RECORDED_PROGRAMS = {"Masked", "mirrored", "timed"}
"""Programs that TensorFlow ran, whose answers are stored, call these."""


@pytest.mark.parametrize(
    ("folder", "known"),
    [
        # The programs of a benchmark have the names of its cases.
        ("benchmarks", {"coordinated", "packed"}),
        ("examples", set()),
        ("scripts", set()),
        ("tests", NAMES_OF_RECORDED_PROGRAMS),
    ],
)
def test_names_of_programs_are_no_bare_participles(folder: str, known: set[str]) -> None:
    sources = [file.read_text(encoding="utf-8") for file in (ROOT / folder).rglob("*.py")]
    assert find_bare_participles(map(ast.parse, sources)) == known


@pytest.mark.parametrize("name", ["_joined", "told", "opened", "written"])
def test_a_bare_participle_is_found(name: str) -> None:
    assert says_only_what_was_done(ast.parse(f"def {name}(): ...").body[0])
    assert says_only_what_was_done(ast.parse(f"class {name.title()}: ...").body[0])


@pytest.mark.parametrize("name", ["join", "feed", "_opened_reply", "seed", "is_told"])
def test_another_name_is_not_found(name: str) -> None:
    assert not says_only_what_was_done(ast.parse(f"def {name}(): ...").body[0])


MAKES_LOCK = {"Condition", "Lock", "RLock", "condition", "lock"}


def unexplained_locks(source: str) -> list[str]:
    """The locks of which no line says what they guard or when they are held."""
    found = []
    for node in ast.walk(ast.parse(source)):
        body = getattr(node, "body", ())
        for statement, after in pairwise([*body, None] if isinstance(body, list) else ()):
            match statement:
                case (
                    ast.Assign(targets=[target], value=ast.Call(func=function))
                    | ast.AnnAssign(target=target, value=ast.Call(func=function))
                ) if ast.unparse(function).split(".")[-1] in MAKES_LOCK:
                    name = ast.unparse(target).split(".")[-1]
                    match after:
                        case ast.Expr(value=ast.Constant(value=str())):
                            continue
                    notes = rf"(guarded by|under|with) `?{name}\b|`{name}` (guards|lets)"
                    if not re.search(notes, source):
                        found.append(name)
    return found


def test_every_lock_says_what_it_guards() -> None:
    found = {module: unexplained_locks(source) for module, source in SOURCES.items()}
    assert {module: names for module, names in found.items() if names} == {}


@pytest.mark.parametrize(
    ("note", "names"),
    [
        ("", ["_lock"]),
        ("self._count = 0", ["_lock"]),
        ("self._count = 0  #: guarded by _lock", []),
        ('"""Guards `_count`."""', []),
    ],
)
def test_a_lock_without_a_note_is_found(note: str, names: list[str]) -> None:
    source = "class A:\n    def __init__(self):\n        self._lock = threading.Lock()\n"
    assert unexplained_locks(f"{source}        {note}\n") == names


def test_every_room_of_the_order_exists() -> None:
    assert [room for room in RANK if room not in TREES] == []


def test_the_page_shows_the_order() -> None:
    page = PAGE.read_text(encoding="utf-8")
    lines = re.findall(r"^    (?: *service: +)?(\w+ < .+)$", page, re.MULTILINE)
    shown = [re.findall(r"\w+", line) for line in lines]
    assert shown[0][:5] == "errors element plan engine service".split()
    assert shown[0][5:-2] == "launch delivery data distribute".split()
    assert shown[1] == "protocol logic host".split()
    ranks = [RANK[room] for room in shown[0]]
    assert ranks == sorted(ranks)


def test_the_logic_of_the_service_is_pure() -> None:
    own_rooms = (
        *("penstock.errors", "penstock.service.protocol.", "penstock.service.logic"),
        "penstock.plan.shape.",  # Plain values; it imports nothing of ours.
    )
    assert own_imports("plan.shape") == set()
    names = {
        name
        for module, tree in TREES.items()
        if room_of(module) == "service.logic"
        for node in ast.walk(tree)
        for name in find_imports(node)
    }
    outside = {name for name in names if not name.startswith(own_rooms)}
    assert {name for name in outside if name.split(".")[0] not in PURE_MODULES} == set()


NO_CLOCK = "nothing here owns a thread or reads a clock."


@pytest.mark.parametrize(
    ("plate", "claim", "name", "importers", "allowed"),
    [
        ("element.nest", "No other module may import optree.", "optree", "", {"element.nest"}),
        (
            "engine.meters",
            "no stream imports this",
            "penstock.engine.meters",
            "engine.streams",
            set(),
        ),
        ("engine.formats", "nothing here uses plans.", "penstock.plan", "engine.formats", set()),
        ("engine.tuning", NO_CLOCK, "threading", "engine.tuning", set()),
        ("engine.tuning", NO_CLOCK, "time", "engine.tuning", set()),
    ],
)
def test_a_door_plate_about_imports_is_true(
    plate: str, claim: str, name: str, importers: str, allowed: set[str]
) -> None:
    assert claim in " ".join((ast.get_docstring(TREES[plate]) or "").split())
    found = {
        module
        for module, tree in TREES.items()
        if module.startswith(importers)
        for node in ast.walk(tree)
        if any(f"{each}.".startswith(f"{name}.") for each in find_imports(node))
    }
    assert found == allowed


def test_no_two_files_of_the_service_share_a_name() -> None:
    names = [module.split(".")[-1] for module in TREES if module.startswith("service.")]
    assert {name for name in names if names.count(name) > 1} == set()


def has_a_module(file: Path) -> bool:
    words = file.stem.removeprefix("test_").split("_")
    names = {"_".join(words[:length]) for length in range(1, len(words) + 1)}
    room = ".".join(file.parent.relative_to(TESTS).parts)
    return any(f"{room}.{name}" in TREES for name in names)


@pytest.mark.parametrize("room", ["service", "launch"])
def test_a_test_of_the_service_has_the_name_of_its_module(room: str) -> None:
    files = list((TESTS / room).rglob("test_*.py"))
    assert files
    assert [file for file in files if not has_a_module(file)] == []


CATALOGUES = {"plan.nodes", "data.dataset"}
MOST_LINES = 800
"""Enough to keep a subject in one file, so that a reader finds it by one name."""


def test_a_file_has_at_most_800_lines() -> None:
    sizes = {module: len(source.splitlines()) for module, source in SOURCES.items()}
    assert {name for name, lines in sizes.items() if lines > MOST_LINES} <= CATALOGUES


def is_door(module: str) -> bool:
    return any(other.startswith(f"{module}.") for other in TREES) or module == "__init__"


def re_exported(module: str) -> set[str]:
    """Names that `module` imports from ours, which other modules should import from their home."""
    return {
        alias.asname or alias.name
        for node in TREES[module].body
        if isinstance(node, ast.ImportFrom) and own(f"{node.module}.x") is not None
        for alias in node.names
    }


def test_names_are_imported_from_the_module_that_defines_them() -> None:
    found = defaultdict(set)
    for tree in TREES.values():
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module:
                home = node.module.removeprefix("penstock.")
                if home in TREES and not is_door(home):
                    found[home] |= {alias.name for alias in node.names} & re_exported(home)
    facades = {home: names for home, names in found.items() if names}
    assert facades == {}, "import a name from the module that defines it"


def loaded_by_penstock(before: str) -> set[str]:
    """The modules that `import penstock` loads after an import of `before`."""
    program = (
        f"import sys, {before}; before = set(sys.modules); import penstock;"
        "print(*set(sys.modules) - before)"
    )
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert loaded.returncode == 0, loaded.stderr
    return set(loaded.stdout.split())


def test_import_loads_only_numpy_and_optree() -> None:
    names = {name.split(".")[0] for name in loaded_by_penstock("sys")}
    assert names - set(sys.stdlib_module_names) <= LOADED_AT_IMPORT


def test_import_loads_no_heavy_module() -> None:
    names = loaded_by_penstock("numpy")
    assert HEAVY_MODULES.isdisjoint(names)
    assert "penstock.data" in names
    assert "penstock.distribute" not in names


def is_starred_tuple(node: ast.AST) -> bool:
    """Whether a call packs arguments into a tuple, which hides which argument is which."""
    match node:
        case ast.Call(args=arguments):
            starred = [each.value for each in arguments if isinstance(each, ast.Starred)]
            return any(isinstance(each, ast.Tuple) for each in starred)
    return False


def is_nested_conditional(node: ast.AST) -> bool:
    parts = [part for child in ast.iter_child_nodes(node) for part in ast.walk(child)]
    return isinstance(node, ast.IfExp) and any(isinstance(part, ast.IfExp) for part in parts)


@pytest.mark.parametrize("is_wrong", [is_starred_tuple, is_nested_conditional])
def test_no_expression_is_packed(is_wrong: Callable[[ast.AST], bool]) -> None:
    found = [
        f"{module}:{node.lineno}"
        for module, tree in TREES.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.expr) and is_wrong(node)
    ]
    assert found == []


@pytest.mark.parametrize(
    ("source", "is_wrong"),
    [
        ("f(*(x, y), z=1)", is_starred_tuple),
        ("1 if x else 2 if y else 3", is_nested_conditional),
        ("f(1 if x else 2) if y else 3", is_nested_conditional),
    ],
)
def test_a_packed_expression_is_found(source: str, is_wrong: Callable[[ast.AST], bool]) -> None:
    assert is_wrong(ast.parse(source, mode="eval").body)


@pytest.mark.parametrize("source", ["f(*x, y)", "f((1, 2))", "[*(x, y)]", "1 if x else f(2)"])
def test_a_clear_expression_is_not_found(source: str) -> None:
    expression = ast.parse(source, mode="eval").body
    assert not is_starred_tuple(expression)
    assert not is_nested_conditional(expression)


def test_every_module_has_a_door_plate() -> None:
    plates = {module: first_sentence(source) for module, source in SOURCES.items()}
    ends = (".", "!", "?", ":")
    assert [module for module, plate in plates.items() if not plate.endswith(ends)] == []


def test_map_is_fresh() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert page == update(page, PACKAGE), "the map is stale; run scripts/architecture_map.py"


def test_map_needs_its_markers() -> None:
    with pytest.raises(ValueError, match=r"the markers are missing; put back '<!-- map: begin"):
        update(f"{END} {BEGIN}", PACKAGE)


PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
# Pages whose lines this file checks; tests/test_readme.py checks those of the other pages.
NARROW_PAGES = [page for page in PAGES if page.parent in (ROOT, ROOT / "docs" / "decisions")]
FILES = [
    f"/{file.relative_to(ROOT).as_posix()}"
    for folder in ("src", "tests", "scripts", "examples", "benchmarks")
    for file in (ROOT / folder).rglob("*.py")
]


def prose_of(page: Path) -> str:
    """The text of a page, without the map."""
    return page.read_text(encoding="utf-8").partition(BEGIN)[0]


def test_every_file_that_a_page_names_exists() -> None:
    named = {
        (page.name, path)
        for page in PAGES
        for path in re.findall(r"`((?:\w+/)*\w+\.py)`", prose_of(page))
    }
    ends = {file[at:] for file in FILES for at in range(len(file)) if file[at] == "/"}
    assert [(page, path) for page, path in named if f"/{path}" not in ends] == []


def test_lines_of_pages_are_shorter_than_100_characters() -> None:
    """Tables, titles and the index of decisions have one line for each entry."""
    lines = [(page.name, line) for page in NARROW_PAGES for line in prose_of(page).splitlines()]
    long = [(page, line) for page, line in lines if len(line) >= 100]
    assert [each for each in long if not each[1].startswith(("|", "#", "- [00"))] == []


WAYS = {"In this process": "local", "On to replicas": "replicas", "Through a service": "service"}


@pytest.fixture(scope="module")
def visited_files() -> dict[str, list[str]]:
    """The files that a profiler saw on each way."""
    walk = [sys.executable, "-m", "tests.walking"]
    run = subprocess.run(walk, capture_output=True, text=True, cwd=ROOT)
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)


@pytest.mark.parametrize("heading", WAYS)
def test_the_element_visits_the_files_that_the_page_names(
    heading: str, visited_files: dict[str, list[str]]
) -> None:
    page = PAGE.read_text(encoding="utf-8")
    section = re.search(rf"### {heading}\n(.*?)\n##", page, re.DOTALL)
    assert section is not None
    files = re.findall(r"`([\w/]+\.py)`", section[1])
    assert len(files) >= 5
    assert [file for file in files if file not in visited_files[WAYS[heading]]] == []


@pytest.mark.parametrize(
    ("module", "target", "wrong"),
    [
        ("plan.nodes", "element.spec", False),
        ("plan.nodes", "plan.functions", False),
        ("plan.nodes", "engine.lower", True),
        ("service.logic", "service.protocol", False),
        ("service.logic", "service.host", True),
        ("service.protocol", "service.logic", True),
        ("service.host", "engine.lower", False),
        ("data.dataset", "service.host", False),
        ("service.host", "data.dataset", True),
        ("shim", "cli", True),
        ("__init__", "cli", False),
        ("errors", "__init__", True),
    ],
)
def test_the_order_itself(module: str, target: str, wrong: bool) -> None:
    assert {module, target} <= TREES.keys()
    assert out_of_order(module, target) is wrong
