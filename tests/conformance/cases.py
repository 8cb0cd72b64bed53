"""The programs and what TensorFlow answered to them, as stored in `cases/`.

Expected answers are observations: they are never edited. What penstock does otherwise is listed
in `docs/deviations.md`.
"""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "cases"
PINS = FOLDER / "deviations.json"

# These programs run with (old, new) text: they name TensorFlow itself, use what penstock does not
# have without catching the error, write str for bytes, or write into a folder of others.
# The change does not touch what they test.
EDITS = {
    "strategy/values/in_function": (
        "(ident(PR(3., 4.)), ident.experimental_get_tracing_count())[1]",
        "err(lambda: ident.experimental_get_tracing_count())",
    ),
    "strategy/values/ragged_sparse": ("lambda c: tf.sparse.from_dense([[0, 1]])", "lambda c: None"),
    "options/defaults": ('startswith("tensorflow")', 'startswith("penstock")'),
    "dataset/as_numpy_iterator/basic": (
        '"sparse": t(D.from_tensors(tf.sparse.from_dense([1, 0])))',
        '"sparse": err(lambda: t(D.from_tensors(tf.sparse.from_dense([1, 0]))))',
    ),
    "service/server/ctor_work_dir_missing": (
        'work_dir="/nope/zz/dir")).target)',
        'work_dir=os.path.join(tmpdir(), "zz/dir"))).target.rstrip("0123456789") + "PORT")',
    ),
    "service/id/basic": ('"dtype": i1.dtype.name', '"dtype": type(i1).__name__'),
    "autoshard/policy/textline_map_W2": ('s + "!"', 's + b"!"'),
    "autoshard/policy/textline_map_W3": ('s + "!"', 's + b"!"'),
    "autoshard/policy/interleave_map_inner_W2": ('s + "?"', 's + b"?"'),
    "autoshard/policy/interleave_map_inner_W3": ('s + "?"', 's + b"?"'),
    "autoshard/policy/files_filter_W2": ('s != "a1"', 's != b"a1"'),
    "autoshard/policy/files_filter_W3": ('s != "a1"', 's != b"a1"'),
}


@dataclass(frozen=True)
class Case:
    """One program with TensorFlow's answer; `compare` says how closely penstock must follow it."""

    id: str
    source: str
    expected: Any
    compare: str
    also_observed: tuple[Any, ...] = ()
    own_process: bool = False
    workers: int = 1

    @property
    def area(self) -> str:
        return self.id.partition("/")[0]


def load() -> list[Case]:
    """Every case of every area, except those about TensorFlow's internals."""
    files = sorted(path for path in FOLDER.glob("*.json") if path != PINS)
    stored = [case for path in files for case in json.loads(path.read_text())]
    return [_case(case) for case in stored if case["compare"] != "internal"]


def _case(stored: dict[str, Any]) -> Case:
    source = stored["program"]["source"]
    if edit := EDITS.get(stored["id"]):
        assert edit[0] in source, f"{stored['id']}: the text to edit is gone: {edit[0]}"
        source = source.replace(*edit)
    return Case(
        id=stored["id"],
        source=source,
        expected=stored["expected"],
        compare=stored["compare"],
        also_observed=tuple(stored.get("also_observed", ())),
        own_process=stored.get("own_process", False),
        workers=_workers(stored["id"]),
    )


def _workers(case_id: str) -> int:
    """How many processes run the program together; each runs all of it."""
    match = re.match(r"multiworker/(\d+)w/", case_id)
    return int(match[1]) if match else 1


def dumps(value: Any, indent: int = 0, width: int = 100) -> str:
    """JSON that breaks a container over lines only when it does not fit in one."""
    line = json.dumps(value, ensure_ascii=False)
    if len(line) + indent <= width or not isinstance(value, dict | list) or not value:
        return line
    pad = " " * (indent + 1)
    if isinstance(value, dict):
        keys = [f"{json.dumps(key, ensure_ascii=False)}: " for key in value]
        rows = [
            key + dumps(item, indent + 1, width - len(key))
            for key, item in zip(keys, value.values(), strict=True)
        ]
        return "{\n" + ",\n".join(pad + row for row in rows) + "\n" + " " * indent + "}"
    rows = [dumps(item, indent + 1, width) for item in value]
    return "[\n" + ",\n".join(pad + row for row in rows) + "\n" + " " * indent + "]"
