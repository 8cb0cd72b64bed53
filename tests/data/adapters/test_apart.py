"""Frameworks in separate processes: configured before the import, or not installed."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from penstock import Ragged
from penstock.data import Dataset
from penstock.errors import InvalidArgumentError, InvalidTypeError

HERE = Path(__file__).parent
ROOT = HERE.parents[2]


def start(*command: str, folder: Path, **environment: str) -> subprocess.Popen[str]:
    paths = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    return subprocess.Popen(
        [sys.executable, *command],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": paths, "KERAS_HOME": str(folder)} | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.mark.parametrize(
    ("cases", "environment"),
    [
        ("torch_worker_cases.py", {}),
        ("jax_cases.py", {"XLA_FLAGS": "--xla_force_host_platform_device_count=8"}),
        ("keras_cases.py", {"KERAS_BACKEND": "jax"}),
        ("keras_cases.py", {"KERAS_BACKEND": "torch"}),
    ],
    ids=["torch with workers", "jax with devices", "keras on jax", "keras on torch"],
)
def test_cases_pass(cases: str, environment: dict[str, str], tmp_path: Path) -> None:
    options = ["-q", "-p", "no:xdist", "-p", "no:cacheprovider"]
    run = start("-m", "pytest", *options, str(HERE / cases), folder=tmp_path, **environment)
    printed, _ = run.communicate()
    assert run.returncode == 0, printed
    assert " passed" in printed


MISSING = """
import sys
from penstock.data import Dataset
from penstock.errors import UnavailableError
sys.modules[sys.argv[1]] = None
try:
    getattr(Dataset.range(4).batch(2), "as_" + sys.argv[1])()
except UnavailableError as error:
    print(error)
"""


@pytest.mark.parametrize("framework", ["torch", "jax", "keras"])
def test_a_framework_that_is_not_installed(framework: str, tmp_path: Path) -> None:
    printed, _ = start("-c", MISSING, framework, folder=tmp_path).communicate()
    assert printed == (
        f"Dataset.as_{framework}: {framework} is not installed; "
        f"install it with: pip install 'penstock[{framework}]'\n"
    )


TENSORFLOW = """
import sys
from penstock.data import Dataset
from penstock.errors import FailedPreconditionError
sys.modules["tensorflow"] = None
try:
    Dataset.range(4).batch(2).as_keras()
except FailedPreconditionError as error:
    print(error)
"""


def test_keras_must_not_be_set_to_tensorflow(tmp_path: Path) -> None:
    run = start("-c", TENSORFLOW, folder=tmp_path, KERAS_BACKEND="tensorflow")
    printed, _ = run.communicate()
    assert printed.endswith(
        "Dataset.as_keras: Keras is set to its tensorflow backend; set the environment variable "
        "KERAS_BACKEND to jax or torch before keras is imported\n"
    )


@pytest.mark.parametrize(
    ("dataset", "kind", "match"),
    [
        (Dataset.range(4), InvalidArgumentError, "every component must have rows, .*; use batch"),
        (
            Dataset.from_tensor_slices((np.zeros((4, 3)), np.zeros(4))),
            InvalidArgumentError,
            r"every component must have rows, got TensorSpec\(shape=\(\), .*; use batch first",
        ),
        (
            Dataset.from_tensor_slices((np.zeros((4, 3)), np.zeros((4, 2)))),
            InvalidArgumentError,
            r"the components of an element have \[2, 3\] rows",
        ),
        (
            Dataset.from_tensor_slices((np.zeros(4),) * 4).batch(2),
            InvalidArgumentError,
            "an element has 4 components; map it to x,",
        ),
        (
            Dataset.from_tensor_slices(Ragged.from_rows([[1], [2, 3]])).ragged_batch(2),
            InvalidTypeError,
            "a component is ragged, .*; use padded_batch",
        ),
        (
            Dataset.from_tensor_slices(["a", "b"]).batch(2),
            InvalidTypeError,
            "a component holds strings, .*; map them to numbers",
        ),
        (
            Dataset.range(4).repeat().batch(2),
            InvalidArgumentError,
            r"the dataset is infinite; say how many batches make an epoch, as_keras\(steps_per_ep",
        ),
        (
            Dataset.range(4).batch(5, drop_remainder=True),
            InvalidArgumentError,
            "the dataset has no batches",
        ),
    ],
)
def test_what_keras_cannot_train_on_is_refused_at_once(
    dataset: Dataset, kind: type[Exception], match: str
) -> None:
    with pytest.raises(kind, match=f"^Dataset.as_keras: {match}"):
        dataset.as_keras()


@pytest.mark.parametrize("steps", [0, -1])
def test_an_epoch_has_steps(steps: int) -> None:
    match = f"^Dataset.as_keras: steps_per_epoch must be at least 1, got {steps}"
    with pytest.raises(InvalidArgumentError, match=match):
        Dataset.range(4).batch(2).as_keras(steps)


TWO_PROCESSES = """
import sys
import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from penstock.data import Dataset

rank = int(sys.argv[2])
jax.distributed.initialize("localhost:" + sys.argv[1], 2, rank)
sharding = NamedSharding(jax.make_mesh((4,), ("batch",)), PartitionSpec("batch"))
rows = Dataset.from_tensor_slices(np.arange(24, dtype=np.float32).reshape(12, 2))
for array in rows.shard(2, rank).batch(2).as_jax(sharding):
    assert array.shape == (4, 2), array.shape
    assert not array.is_fully_addressable
    here = [part.data.tolist() for part in array.addressable_shards]
    print(here, float(jax.jit(lambda x: x.sum())(array)))
try:
    list(rows.batch(3).as_jax(sharding))
except ValueError as error:
    print(str(error)[:60])
"""


def test_two_processes_make_one_array(tmp_path: Path) -> None:
    with socket.create_server(("localhost", 0)) as server:
        port = str(server.getsockname()[1])
    flags = "--xla_force_host_platform_device_count=2"
    runs = [
        start("-c", TWO_PROCESSES, port, rank, folder=tmp_path, XLA_FLAGS=flags)
        for rank in ("0", "1")
    ]
    printed = [run.communicate()[0] for run in runs]
    assert [run.returncode for run in runs] == [0, 0], "\n".join(printed)
    # Of each batch, process 0 has the even rows and process 1 the odd ones.
    sums = [28.0, 92.0, 156.0]
    for rank in range(2):
        firsts = [2 * (4 * step + rank) for step in range(3)]
        shards = [[[[n, n + 1.0]], [[n + 4.0, n + 5.0]]] for n in map(float, firsts)]
        expected = [f"{here} {total}" for here, total in zip(shards, sums, strict=True)]
        assert printed[rank].splitlines()[-4:-1] == expected
        assert printed[rank].splitlines()[-1].startswith("Dataset.as_jax: an array of shape (3, 2)")
