"""MultiWorkerMirroredStrategy in real processes on this machine, and errors in one process."""

import json
import re
import socket
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest

from penstock.distribute.cluster_resolver import SimpleClusterResolver, TFConfigClusterResolver
from penstock.distribute.devices import Device
from penstock.distribute.multiworker import (
    CommunicationImplementation,
    CommunicationOptions,
    MultiWorkerMirroredStrategy,
    _select_devices,
    _timeout,
)
from penstock.distribute.strategy import MirroredStrategy
from penstock.distribute.workers import collectives, torch_collectives
from penstock.distribute.workers.cluster import Member, Membership
from penstock.errors import (
    DeadlineExceededError,
    FailedPreconditionError,
    InvalidArgumentError,
    InvalidTypeError,
    UnavailableError,
)
from tests.distribute.workers import team_programs
from tests.distribute.workers.team import MemberReport, addresses, run_processes, run_team

PROGRAMS = (
    "place train portions reductions slices tensors variables arrays disagreements again".split()
)
PAIR = Membership((Member("worker 0", "localhost:1"), Member("worker 1", "")), 1)


@pytest.fixture(scope="module", params=["numpy", "torch", "jax"])
def team(request: pytest.FixtureRequest) -> list[MemberReport]:
    """Two processes with two replicas each, which have run all programs."""
    # jax adds up all dtypes; torch's gloo does not.
    return run_team(PROGRAMS if request.param == "jax" else [*PROGRAMS, "sums"], request.param)


def test_members_end_well(team: list[MemberReport]) -> None:
    assert [one.status for one in team] == [0, 0], "\n".join(one.errors for one in team)


def test_everyone_knows_its_place(team: list[MemberReport]) -> None:
    for worker, found in enumerate(one["place"] for one in team):
        assert found["replicas"] == 4
        assert found["ids"] == [2 * worker, 2 * worker + 1]
        assert found["totals"] == [[10.0], [10.0]]
        assert found["task"] == ["worker", worker, 1]
        task = f"/job:worker/replica:0/task:{worker}/device:CPU"
        assert found["devices"] == [f"{task}:0", f"{task}:1"]


def test_same_weights_as_one_replica_with_the_whole_batch(team: list[MemberReport]) -> None:
    alone = team_programs.train(MirroredStrategy(["CPU:0"]))
    for found in (one["train"] for one in team):
        assert found["weights"][0] == found["weights"][1] == team[0]["train"]["weights"][0]
        assert found["losses"] == team[0]["train"]["losses"]
        np.testing.assert_allclose(found["weights"][0], alone["weights"][0], 1e-4)
        np.testing.assert_allclose(found["losses"], alone["losses"], 1e-3, 1e-4)
    assert len(alone["losses"]) == 2 * 7


def test_tensors_stay_tensors(team: list[MemberReport]) -> None:
    assert [one["tensors"] for one in team] == [["Tensor"] * 4] * 2


def test_uneven_data_has_equal_steps_and_every_element_once(team: list[MemberReport]) -> None:
    first, second = (one["portions"] for one in team)
    assert first["kind"] == second["kind"] == "PerReplica"
    assert first["data"] == [[[0, 1], [4, 5]], [[6, 7], [10, 11]], [[12], []]]
    assert second["data"] == [[[2, 3], []], [[8, 9], []], [[], []]]
    assert first["function"] == [[[0, 1], [2, 3]], [[], []], [[], []]]
    assert second["function"] == [[[0, 1], [2, 3]], [[4, 5], [6, 7]], [[8], []]]


def test_workers_shuffle_alike(team: list[MemberReport]) -> None:
    steps = [step for one in team for step in one["portions"]["shuffled"]]
    assert sorted(number for step in steps for part in step for number in part) == list(range(24))


def test_reductions_span_all_workers(team: list[MemberReport]) -> None:
    for found in (one["reductions"] for one in team):
        assert found["sum"] == [6.0, 60.0]
        assert found["mean"] == [1.5, 15.0]
        assert found["mean0"] == pytest.approx((0 + 0 + 1 + 0 + 1 + 2) / 6)
        assert found["gather"] == [0.0, 0.0, 1.0, 0.0, 1.0, 2.0]
        assert found["large"] == 600 * (1 + 3)


def test_rows_with_numbers_span_all_workers(team: list[MemberReport]) -> None:
    for found in (one["slices"] for one in team):
        assert found["sum"] == [[1.0, 2.0, 2.0, 3.0, 3.0, 3.0], [0, 0, 1, 0, 1, 2]]
        assert found["mean"] == [0.25, 0.5, 0.5, 0.75, 0.75, 0.75]
        assert found["first"] == [[5.0], [0]]


def test_variables_start_equal_and_stay_so(team: list[MemberReport]) -> None:
    for found in (one["variables"] for one in team):
        assert found == {"start": 10.0, "mirrored": [12.5, 12.5], "on_read": 10.0}


def test_arrays_arrive_as_they_were(team: list[MemberReport]) -> None:
    for found in (one["arrays"] for one in team):
        assert found == {
            "gathered": [[0, 2], [200, 2]],
            "value": 1,
            "small": [[True, True], [False, True]],
            "broadcast": ["float64", 0.1],
            "broadcast_small": 5,
            "other_order": [[8, 8], [7, 7]],
        }


def test_workers_that_disagree_raise(team: list[MemberReport]) -> None:
    for worker, found in enumerate(one["disagreements"] for one in team):
        kind, message = found["shapes"]
        assert kind == "DisagreementError"
        assert re.search(
            r"worker 0 \(localhost:\d+\) has a value of shape \(3,\) but worker 1 \(localhost:\d+\)"
            r" of shape \(4,\); give the same shape on all workers, or reduce over axis=0",
            message,
        )
        mine, other = "gather of int8[2]", "barrier of bool[0]"
        expected = (mine, other) if worker == 0 else (other, mine)
        assert f"calls {expected[0]}, but worker {1 - worker} " in found["calls"][1]
        assert f"calls {expected[1]}; all workers must run the same program" in found["calls"][1]
        assert "gather of float32[2]" in found["dtypes"][1]
        assert found["strings"][0] == "UnimplementedError"
        assert "strings cannot be sent to other workers" in found["strings"][1]
        assert "an array of 9 dimensions cannot be sent to" in found["many_dimensions"][1]


def test_a_second_strategy_in_the_same_processes(team: list[MemberReport]) -> None:
    for worker, found in enumerate(one["again"] for one in team):
        assert (found["replicas"], found["sum"]) == (2, 3.0)
        kind, message = found["other"]
        assert kind == "DisagreementError"
        assert re.search(f"this is worker {worker} of 3, but (rank|process) {worker} of 2", message)
        kind, message = found["counts"]
        assert kind == "DisagreementError"
        assert re.search(
            r"worker 0 .* has 1 device\(s\) but worker 1 .* has 2; give every", message
        )


@pytest.mark.parametrize("team", ["numpy", "torch"], indirect=True)
def test_sums_of_all_dtypes(team: list[MemberReport]) -> None:
    sizes, dtypes = (3, 2000), ("int8", "int16", "float16", "bfloat16", "float64", "complex64")
    expected = {f"{dtype}{size}": [dtype, 3.0, size] for dtype in dtypes for size in sizes}
    expected |= {f"other_order{size}": ["float32", 3.0, size] for size in sizes}
    for one in team:
        assert one["sums"] == expected


@pytest.mark.parametrize(("backend", "workers"), [("torch", 3), ("jax", 2)])
def test_a_killed_worker_is_named(backend: str, workers: int) -> None:
    *alive, dead = run_team(["die"], backend, range(workers), workers)
    assert dead.status == -9
    for number, one in enumerate(alive):
        kind, message = one["die"]["first"]
        assert kind == "UnavailableError"
        # The first worker keeps the list of members; a late worker may find that it has left, too.
        gone = f"{workers - 1}" if number == 0 else f"[0{workers - 1}]"
        assert re.search(rf"Strategy: worker {gone} \(localhost:\d+\) is gone, see", message)
        assert one["die"]["then"][0] == "UnavailableError"
        assert "was lost before; start all of them again" in one["die"]["then"][1]


@pytest.mark.parametrize("backend", ["torch", "jax"])
def test_a_silent_worker_is_named(backend: str) -> None:
    first, _ = run_team(["keep_silent"], backend)
    kind, message = first["keep_silent"]["first"]
    assert kind == "DeadlineExceededError"
    assert re.search(r"worker 1 \(localhost:\d+\) has not taken part for \d+ s; is it", message)


@pytest.mark.parametrize("backend", ["torch", "jax"])
@pytest.mark.parametrize("there", [0, 1])
def test_a_missing_worker_is_named(backend: str, there: int) -> None:
    places = addresses(2)
    (found,) = run_team([], backend, [there], timeout=2, places=places)
    assert found["strategy"]["error"] == "DeadlineExceededError"
    expected = f"waited 2 s for worker {1 - there} ({places[1 - there]}), in vain; start all 2 w"
    assert expected in found["strategy"]["message"]
    assert f"that they reach {places[0]}" in found["strategy"]["message"]


def test_a_place_that_is_taken() -> None:
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        places = [f"localhost:{taken.getsockname()[1]}", "localhost:1"]
        (found,) = run_team([], "torch", [0], timeout=2, places=places)
    assert found["strategy"]["error"] == "FailedPreconditionError"
    assert "is another program there? choose another port" in found["strategy"]["message"]


def test_under_torchrun() -> None:
    program = Path(__file__).with_name("torchrun_program.py")
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    (said,) = run_processes([[*torchrun, str(program)]])
    assert said.status == 0, said.errors
    assert {name: said[name] for name in ("0", "1")} == {
        "0": [2, 3.0, "TorchrunClusterResolver"],
        "1": [2, 3.0, "TorchrunClusterResolver"],
    }


def test_without_a_cluster_it_is_one_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TF_CONFIG", "RANK", "WORLD_SIZE", "SLURM_PROCID"):
        monkeypatch.delenv(name, raising=False)
    strategy = MultiWorkerMirroredStrategy()
    assert strategy.num_replicas_in_sync == 1
    assert strategy._replicas.collectives is None
    assert isinstance(strategy.cluster_resolver, TFConfigClusterResolver)
    assert strategy.run(lambda: 3) == 3


def test_one_worker_of_tf_config(monkeypatch: pytest.MonkeyPatch) -> None:
    config = {"cluster": {"worker": ["localhost:1"]}, "task": {"type": "worker", "index": 0}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(config))
    strategy = MultiWorkerMirroredStrategy(devices=["CPU:0", "CPU:1"])
    assert strategy.num_replicas_in_sync == 2
    assert strategy.cluster_resolver.task_type == "worker"


def test_processes_of_one_machine_share_its_accelerators() -> None:
    gpus = [Device("GPU", index) for index in range(4)]
    cpus = [Device("CPU", index) for index in range(4)]

    def share(devices: list[Device], local: tuple[int, int] | None) -> list[int]:
        return [device.index for device in _select_devices(devices, Membership(local=local))]

    assert [share(gpus, (index, 2)) for index in range(2)] == [[0, 1], [2, 3]]
    assert share(gpus, (3, 4)) == [3]
    assert share(gpus, None) == [0, 1, 2, 3]
    assert share(cpus, (1, 2)) == [0, 1, 2, 3]
    # Fewer than processes: each was given its own by the launcher, under the same number.
    assert share(gpus[:1], (1, 2)) == [0]


def test_the_timeout_comes_from_the_nearest_place() -> None:
    environ = {"PENSTOCK_WORKER_TIMEOUT": "7"}
    assert _timeout(CommunicationOptions(), None, {}) == 300
    assert _timeout(CommunicationOptions(), None, environ) == 7
    assert _timeout(CommunicationOptions(), 8, environ) == 8
    assert _timeout(CommunicationOptions(timeout_seconds=9), 8, environ) == 9
    with pytest.raises(InvalidArgumentError, match="PENSTOCK_WORKER_TIMEOUT must be a positive"):
        _timeout(CommunicationOptions(), None, {"PENSTOCK_WORKER_TIMEOUT": "soon"})


def test_communication_options() -> None:
    options = CommunicationOptions(implementation="NCCL")
    assert options.implementation is CommunicationImplementation.NCCL
    assert (options.bytes_per_pack, options.timeout_seconds) == (0, None)


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        (
            {"cluster_resolver": ["a:1"]},
            InvalidTypeError,
            "must be a ClusterResolver, got .*Simple",
        ),
        ({"communication_options": 3}, InvalidTypeError, "must be CommunicationOptions, got 3"),
        ({"timeout": 0}, InvalidArgumentError, "timeout must be a positive number of seconds, got"),
        ({"timeout": float("nan")}, InvalidArgumentError, "number of seconds, got nan"),
        ({"devices": "CPU:0"}, InvalidArgumentError, "Strategy: devices must be a list"),
        ({"backend": "mxnet"}, InvalidArgumentError, "Strategy: backend must be one of"),
        (
            {"cluster_resolver": SimpleClusterResolver(["a:1", "b:1"])},
            InvalidArgumentError,
            "it is not known which of them this one is",
        ),
        (
            {
                "cluster_resolver": SimpleClusterResolver(["a:1", "b:1"], task_id=0),
                "communication_options": CommunicationOptions(implementation="RING"),
                "backend": "jax",
            },
            InvalidArgumentError,
            "jax chooses between NCCL and gloo by the devices, so .* must be AUTO, got RING",
        ),
        (
            {
                "cluster_resolver": SimpleClusterResolver(["a:1", "b:1"], task_id=0),
                "backend": "mxnet",
            },
            InvalidArgumentError,
            "Strategy: backend must be one of",
        ),
    ],
)
def test_wrong_arguments(arguments: dict[str, Any], kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        MultiWorkerMirroredStrategy(**arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"bytes_per_pack": -1}, "bytes_per_pack must be at least 0, got -1"),
        ({"implementation": "MPI"}, "implementation must be one of AUTO, RING, NCCL, got 'MPI'"),
        ({"timeout_seconds": -1}, "timeout_seconds must be a positive number of seconds, got -1"),
    ],
)
def test_wrong_communication_options(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        CommunicationOptions(**arguments)


def test_jax_must_not_have_been_used() -> None:
    assert jax.devices()
    resolver = SimpleClusterResolver(["localhost:1", "b:1"], task_id=1)
    with pytest.raises(FailedPreconditionError, match="make the strategy before anything is compu"):
        MultiWorkerMirroredStrategy(resolver, backend="jax")


def test_nccl_needs_a_device_of_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(InvalidArgumentError, match="NCCL is for CUDA devices, and torch sees none"):
        torch_collectives.connect(PAIR, 1, "NCCL", "call")


def test_a_group_that_cannot_be_formed(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_group(**_: Any) -> None:
        raise RuntimeError("no route\nand much more")

    stand_in = SimpleNamespace(
        is_initialized=lambda: True,
        get_rank=lambda: 1,
        get_world_size=lambda: 2,
        new_group=no_group,
    )
    monkeypatch.setattr(torch_collectives, "dist", stand_in)
    with pytest.raises(UnavailableError, match=r"could not form a process group \(no route\)"):
        torch_collectives.connect(PAIR, 1, "AUTO", "call")


class Failing(collectives.Peers):
    """Collectives with peers that are lost at the first exchange; `absent` names them."""

    absent: list[int] | None = None

    def _lose_connection(self, *_: Any) -> Any:
        raise ConnectionResetError

    def _find_absent(self) -> list[int] | None:
        return self.absent

    _exchange = _broadcast_first = _sum = _as_small_array = _convert_like = _lose_connection


@pytest.mark.parametrize(
    ("absent", "timeout", "kind", "message"),
    [
        ([0], 60, UnavailableError, r"call: worker 0 \(localhost:1\) is gone, see its own output"),
        ([0, 1], 60, UnavailableError, r"worker 0 \(localhost:1\), worker 1 is gone"),
        (None, 60, UnavailableError, "call: another worker is gone"),
        ([], 60, UnavailableError, "call: another worker has given up before, see its own output"),
        (None, 0, DeadlineExceededError, "call: another worker has not taken part for 0 s"),
    ],
)
def test_what_is_said_of_lost_workers(
    absent: list[int] | None, timeout: float, kind: type[Exception], message: str
) -> None:
    peers = Failing(PAIR, timeout, "call")
    peers.absent = absent
    with pytest.raises(kind, match=message):
        peers.barrier()
    with pytest.raises(UnavailableError, match="call: the connection between the workers was lost"):
        peers.gather(np.zeros(3))


def test_numpy_needs_torch_for_more_than_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "penstock.distribute.workers.torch_collectives")
    monkeypatch.setitem(sys.modules, "torch", None)
    message = (
        "2 processes with backend 'numpy' communicate by torch.distributed, but torch is not inst"
    )
    with pytest.raises(UnavailableError, match=message):
        collectives.connect("numpy", PAIR, 1, "AUTO", "call")


FAILING = """
import json, sys
from penstock.data import Dataset
from penstock.distribute.cluster_resolver import SimpleClusterResolver
from penstock.distribute.multiworker import MultiWorkerMirroredStrategy

index, where = json.loads(sys.argv[1])
strategy = MultiWorkerMirroredStrategy(SimpleClusterResolver(where, task_id=index), timeout=120)

def fails_here(x):
    if index and x == 20:
        raise ValueError("not here")
    return x

dataset = Dataset.range(64).map(fails_here).batch(8)
try:
    for value in strategy.experimental_distribute_dataset(dataset):
        strategy.reduce("SUM", value, axis=0)
except Exception as error:
    print(json.dumps(["said", "error", [type(error).__name__, str(error)]]))
    raise
"""


def test_when_one_worker_fails_the_other_workers_raise_soon():
    where = addresses(2)
    commands = [["-c", FAILING, json.dumps([index, where])] for index in range(2)]
    waiting, failing = run_processes(commands)
    assert failing["error"][0] == "InvalidArgumentError"
    assert failing.status == waiting.status == 1
    kind, message = waiting["error"]
    assert kind == "UnavailableError"
    assert re.search("worker 1 .* is gone, see its own output", message)
