"""The other backends run the same programs, and give replicas the same values.

Only the values of replicas are compared. Texts, types and specs are those of the numpy backend, and
numbers may be narrower (jax has no int64 unless jax_enable_x64 is set). The programs expect logical
CPUs, so the backends show them no other devices.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest

import penstock
from penstock.distribute.backends import load as load_backend
from tests.conformance import oracle_helpers
from tests.conformance.cases import Case, load
from tests.conformance.compare import Difference, differences
from tests.conformance.deviations import read_deviations
from tests.conformance.programs import run

AREAS = ("seeds", "rebatch", "iterator", "from_function", "strategy")
ROWS = read_deviations()


def values_in(answer: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every `PerReplica` in an encoded answer, with its path."""
    if isinstance(answer, dict) and set(answer) == {"per_replica"}:
        yield path, answer
        return
    parts: Any = ()
    if isinstance(answer, dict):
        parts = answer.items()
    elif isinstance(answer, list):
        parts = enumerate(answer)
    for key, part in parts:
        yield from values_in(part, f"{path}.{key}" if path else str(key))


def cases() -> Iterator[Case]:
    """The programs whose answers hold values of replicas, with numpy's known deviations."""
    for case in load():
        if case.id.split("/")[0] in AREAS and case.compare == "exact" and expected_of(case):
            yield case


def expected_of(case: Case) -> dict[str, Any]:
    paths = [row.path for row in ROWS if row.case == case.id]
    found = values_in(case.expected)
    return {
        path: value
        for path, value in found
        if not any(Difference(path, None, None).under(one) for one in paths)
    }


def encode_value(original: Any, value: Any) -> Any:
    """Values of jax are no NumPy arrays and have no `numpy()` either."""
    is_jax = type(value).__module__.startswith("jax")
    return original(np.asarray(value) if is_jax else value)


def hide_accelerators(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes a backend report only CPUs, also on a machine with GPUs."""
    kind: Any = type(load_backend(backend))
    handles = kind.handles
    monkeypatch.setattr(
        kind, "handles", lambda self, kind: handles(self, kind) if kind == "CPU" else ()
    )


@pytest.mark.parametrize("backend", ["torch", "jax"])
def test_programs_see_no_accelerators(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kind: Any = type(load_backend(backend))
    cpus = load_backend(backend).handles("CPU")
    monkeypatch.setattr(kind, "handles", lambda self, kind: cpus)  # As if each were a GPU, too.
    assert "GPU" in penstock.distribute.MirroredStrategy(backend=backend).extended.worker_devices[0]
    hide_accelerators(backend, monkeypatch)
    assert "CPU" in penstock.distribute.MirroredStrategy(backend=backend).extended.worker_devices[0]


@pytest.mark.parametrize("backend", ["torch", "jax"])
@pytest.mark.parametrize("case", list(cases()), ids=lambda case: case.id)
def test_gives_the_same_values(case: Case, backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    hide_accelerators(backend, monkeypatch)
    made = partial(penstock.distribute.MirroredStrategy, backend=backend)
    monkeypatch.setattr(penstock.distribute, "MirroredStrategy", made)
    monkeypatch.setattr(oracle_helpers, "J", partial(encode_value, oracle_helpers.J))
    # A device of torch or jax is an object, not a text.
    asked = case.source.replace("v.device.split", "str(v.device).split")
    outcome = run(Case(case.id, asked, case.expected, case.compare))
    got = dict(values_in(outcome.answer))
    wrong = {
        path: (expected, got.get(path))
        for path, expected in expected_of(case).items()
        if path not in got or differences(expected, got[path])
    }
    assert not wrong, outcome.trace
