"""The members of a cluster and the role of this process, from the variables of launchers."""

import json
from typing import Any

import pytest

from penstock.distribute.cluster_resolver import (
    SimpleClusterResolver,
    SlurmClusterResolver,
    TFConfigClusterResolver,
    TorchrunClusterResolver,
    expand_counts,
    expand_nodes,
    find_resolver,
)
from penstock.distribute.workers.cluster import (
    ClusterResolver,
    ClusterSpec,
    Member,
    Membership,
    membership,
)
from penstock.errors import DisagreementError, InvalidArgumentError, InvalidTypeError

TORCHRUN = {"RANK": "1", "WORLD_SIZE": "3", "MASTER_ADDR": "a", "MASTER_PORT": "29500"}
SLURM = {
    "SLURM_JOB_ID": "4007",
    "SLURM_PROCID": "2",
    "SLURM_NTASKS": "3",
    "SLURM_STEP_NODELIST": "n[08-09]",
    "SLURM_STEP_TASKS_PER_NODE": "2,1",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "1",
}


def tf_config(cluster: Any, kind: str | None = None, index: Any = None) -> dict[str, str]:
    task = {} if kind is None else {"task": {"type": kind, "index": index}}
    return {"TF_CONFIG": json.dumps({"cluster": cluster} | task)}


def place(environ: dict[str, str]) -> Membership:
    return membership(find_resolver(environ), "MultiWorkerMirroredStrategy")


def test_tf_config() -> None:
    found = place(tf_config({"worker": ["a:1", "b:2"]}, "worker", 1))
    assert (found.worker, found.workers, found.meeting_point) == (1, 2, ("a", 1))
    assert [str(member) for member in found.members] == ["worker 0 (a:1)", "worker 1 (b:2)"]


def test_an_index_may_be_a_string() -> None:
    assert place(tf_config({"worker": ["a:1", "b:2"]}, "worker", "1")).worker == 1


def test_a_chief_comes_first_and_evaluators_are_alone() -> None:
    cluster = {"worker": ["b:1", "c:1"], "chief": ["a:1"], "evaluator": ["e:1"]}
    found = place(tf_config(cluster, "worker", 0))
    assert (found.worker, found.workers, found.meeting_point) == (1, 3, ("a", 1))
    assert place(tf_config(cluster, "chief", 0)).worker == 0
    assert place(tf_config(cluster, "evaluator", 0)) == Membership()


def test_arguments_go_over_tf_config() -> None:
    environ = tf_config({"worker": ["a:1", "b:2"]}, "worker", 1)
    resolver = TFConfigClusterResolver("worker", 0, environ=environ)
    assert (resolver.task_type, resolver.task_id) == ("worker", 0)


@pytest.mark.parametrize(
    "environ", [{}, {"TF_CONFIG": ""}, {"TF_CONFIG": "{}"}, {"TF_CONFIG": '{"task": {}}'}]
)
def test_no_cluster_is_one_worker(environ: dict[str, str]) -> None:
    assert place(environ) == Membership()
    assert find_resolver(environ).task_type is None
    assert find_resolver(environ).master() == ""


def test_one_worker_need_not_say_which() -> None:
    assert place(tf_config({"worker": ["a:1"]})).workers == 1


def test_torchrun() -> None:
    found = place(TORCHRUN)
    assert (found.worker, found.workers, found.meeting_point) == (1, 3, ("a", 29500))
    assert [str(member) for member in found.members][1:] == ["worker 1", "worker 2"]
    assert found.local is None
    assert place(TORCHRUN | {"LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}).local == (1, 2)


def test_slurm() -> None:
    found = place(SLURM)
    assert (found.worker, found.workers, found.local) == (2, 3, (0, 1))
    assert [member.address for member in found.members] == ["n08:61007", "n08:61008", "n09:61007"]


def test_slurm_counts_the_tasks_of_the_step() -> None:
    environ = SLURM | {"SLURM_NTASKS": "8", "SLURM_STEP_NUM_TASKS": "3"}
    assert place(environ).workers == 3


def test_tasks_of_slurm_may_be_dealt_to_jobs() -> None:
    jobs = {"worker": 2, "chief": 1}
    environ = {
        name: SLURM[name] for name in ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_STEP_NODELIST")
    }
    environ["SLURM_STEP_NODELIST"] = "n[1-3]"
    resolver = SlurmClusterResolver(
        8888, jobs=jobs, tasks_per_node=1, rpc_layer="grpc", gpus_per_node=2, environ=environ
    )
    assert resolver.cluster_spec().as_dict() == {
        "chief": ["n1:8888"],
        "worker": ["n2:8888", "n3:8888"],
    }
    assert (resolver.task_type, resolver.task_id) == ("worker", 1)
    assert resolver.master() == "grpc://n1:8888"
    assert membership(resolver, "call").worker == 2
    with pytest.raises(
        DisagreementError, match=r"jobs={'worker': 2} has 2 tasks, but .* started 3"
    ):
        SlurmClusterResolver(jobs={"worker": 2}, environ=environ)
    with pytest.raises(DisagreementError, match=r"tasks_per_node=2 gives \[2, 2, 2\] tasks, but"):
        SlurmClusterResolver(tasks_per_node=2, environ=environ)


def test_torchrun_inside_slurm_counts() -> None:
    assert place(TORCHRUN | SLURM).members[0] == Member("worker 0", "a:29500")


def test_slurm_outside_of_a_step_is_no_cluster() -> None:
    batch = {name: SLURM[name] for name in ("SLURM_JOB_ID", "SLURM_PROCID", "SLURM_NTASKS")}
    assert place(batch) == Membership()


def test_tf_config_and_torchrun_may_agree() -> None:
    config = tf_config({"worker": ["a:1", "b:1", "c:1"]}, "worker", 1)
    assert place(TORCHRUN | config).members[1].address == "b:1"


def test_explicit_arguments() -> None:
    resolver = SimpleClusterResolver(["a:1", "[::1]:2"], task_id=1)
    assert membership(resolver, "call").worker == 1
    assert (resolver.task_type, resolver.master(), resolver.environment) == ("worker", "a:1", "")
    assert resolver.master("worker", 1) == "[::1]:2"
    other = SimpleClusterResolver(ClusterSpec({"chief": ["[::1]:2"]}), "m:1", "chief", 0)
    assert (other.master(), membership(other, "call").meeting_point) == ("m:1", ("::1", 2))


def test_a_resolver_of_the_users_own() -> None:
    class Mine(ClusterResolver):
        task_type, task_id = "worker", 1

        def cluster_spec(self) -> ClusterSpec:
            return ClusterSpec({"worker": ["a:1", "b:1"]})

    assert membership(Mine(), "call").worker == 1
    with pytest.raises(TypeError, match="abstract.* '?cluster_spec"):
        ClusterResolver()  # type: ignore[abstract]


def test_cluster_specs() -> None:
    spec = ClusterSpec({"worker": ("a:1",), "chief": []})
    assert spec.as_dict() == {"worker": ["a:1"], "chief": []}
    assert (spec.jobs, spec.num_tasks("worker")) == (["worker", "chief"], 1)
    assert spec == ClusterSpec(spec)
    assert spec != ClusterSpec({})
    assert spec
    assert not ClusterSpec({})


def test_a_cluster_may_name_some_tasks_only() -> None:
    spec = ClusterSpec({"worker": {"2": "c:1", 0: "a:1"}})
    assert spec.as_dict() == {"worker": {0: "a:1", 2: "c:1"}}
    assert ClusterSpec(spec.as_dict()) == spec
    assert spec.task_indices("worker") == [0, 2]
    assert spec.job_tasks("worker") == ["a:1", None, "c:1"]
    assert (spec.num_tasks("worker"), spec.task_address("worker", 2)) == (2, "c:1")
    assert ClusterSpec({"worker": {1: "b:1", 0: "a:1"}}).as_dict() == {"worker": ["a:1", "b:1"]}
    with pytest.raises(InvalidArgumentError, match=r"has 2 task\(s\), so no task 1"):
        spec.task_address("worker", 1)
    with pytest.raises(InvalidTypeError, match="a list of 'host:port', got {'one'"):
        ClusterSpec({"worker": {"one": "a:1"}})
    resolver = SimpleClusterResolver(spec, task_type="worker", task_id=2)
    assert resolver.master() == "a:1"
    with pytest.raises(InvalidArgumentError, match=r"names only the tasks \[0, 2\] of 'worker'"):
        membership(resolver, "call")


def test_tf_config_may_name_a_protocol() -> None:
    text = json.dumps(
        {
            "cluster": {"worker": ["a:1", "b:1"]},
            "rpc_layer": "grpc",
            "task": {"type": 7, "index": 0},
        }
    )
    resolver = TFConfigClusterResolver(environ={"TF_CONFIG": text})
    assert (resolver.task_type, resolver.rpc_layer, resolver.environment) == ("7", "grpc", "")
    assert resolver.master() == "grpc://a:1"
    assert resolver.master("worker", 1, rpc_layer="own") == "own://b:1"
    given = TFConfigClusterResolver("worker", 1, "own", "google", environ={"TF_CONFIG": text})
    assert (given.rpc_layer, given.environment) == ("own", "google")
    assert given.master() == "own://a:1"
    assert TFConfigClusterResolver(environ={}).master(rpc_layer="grpc") == ""


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("one", ["one"]),
        ("a,b-c.d", ["a", "b-c.d"]),
        ("n[1-3,7]", ["n1", "n2", "n3", "n7"]),
        ("n[008-010]-ib,m2", ["n008-ib", "n009-ib", "n010-ib", "m2"]),
        ("r[0-1]n[1,3]", ["r0n1", "r0n3", "r1n1", "r1n3"]),
    ],
)
def test_lists_of_machines(text: str, names: list[str]) -> None:
    assert expand_nodes(text) == names


@pytest.mark.parametrize(
    ("environ", "kind", "message"),
    [
        ({"TF_CONFIG": "{"}, InvalidArgumentError, "TF_CONFIG: is not JSON .*: '{'"),
        ({"TF_CONFIG": "[]"}, InvalidTypeError, "TF_CONFIG: must be a dict with cluster and"),
        ({"TF_CONFIG": '{"task": 1}'}, InvalidTypeError, "task must be a dict with type and i"),
        (tf_config(["a:1"]), InvalidTypeError, r"must be a dict such as .*, got \['a:1'\]"),
        (tf_config({"worker": "a:1"}), InvalidTypeError, "job 'worker' must be a list of 'host"),
        (tf_config({"worker": [1]}), InvalidTypeError, r"'host:port', got \[1\]"),
        (
            tf_config({"worker": ["a:1"]}, "worker", "x"),
            InvalidArgumentError,
            "TF_CONFIG: task.index must be a whole number, got 'x'",
        ),
        (
            tf_config({"worker": ["a:1"]}, "worker", 1),
            DisagreementError,
            r"Strategy: this process is 'worker 1', but the cluster has only \['worker 0'\]",
        ),
        (
            tf_config({"worker": ["a:1", "b:1"]}),
            InvalidArgumentError,
            "has 2 processes, but it is not known which of them this one is .* set the task's type",
        ),
        (
            tf_config({"worker": ["a:1"], "ps": ["b:1"]}, "worker", 0),
            InvalidArgumentError,
            r"the job\(s\) \['ps'\], but only 'chief' and 'worker' train together",
        ),
        (
            tf_config({"worker": ["a", "b:1"]}, "worker", 0),
            InvalidArgumentError,
            "all workers connect to worker 0, so it needs an address 'host:port', got 'a'",
        ),
        (
            {"RANK": "0", "MASTER_ADDR": "a"},
            InvalidArgumentError,
            "torchrun: WORLD_SIZE, MASTER_PORT not set, while RANK, MASTER_ADDR is; .* or none",
        ),
        ({"WORLD_SIZE": "2"}, InvalidArgumentError, "RANK, MASTER_ADDR, MASTER_PORT not set"),
        (TORCHRUN | {"RANK": "3"}, DisagreementError, "RANK must be less than WORLD_SIZE, got 3"),
        (TORCHRUN | {"RANK": "-1"}, InvalidArgumentError, "RANK must be a whole number, got '-1'"),
        (
            TORCHRUN | {"LOCAL_RANK": "2", "LOCAL_WORLD_SIZE": "2"},
            DisagreementError,
            "LOCAL_RANK must be less than LOCAL_WORLD_SIZE",
        ),
        (
            TORCHRUN | tf_config({"worker": ["a:1", "b:1"]}, "worker", 1),
            DisagreementError,
            "TF_CONFIG says worker 1 of 2, but RANK and WORLD_SIZE say worker 1 of 3; unset one",
        ),
        (
            {"SLURM_PROCID": "0", "SLURM_STEP_NODELIST": "a"},
            InvalidArgumentError,
            "Slurm: SLURM_NTASKS not set, while SLURM_PROCID, SLURM_STEP_NODELIST is",
        ),
        (SLURM | {"SLURM_PROCID": "3"}, DisagreementError, "SLURM_PROCID must be less than SLURM_"),
        (SLURM | {"SLURM_NODEID": "2"}, DisagreementError, "SLURM_NODEID must be less than the n"),
        (
            SLURM | {"SLURM_STEP_TASKS_PER_NODE": "2(x2)"},
            DisagreementError,
            r"gives \[2, 2\] tasks, but there are 3 tasks on 2 node\(s\) \(n\[08-09\]\); start",
        ),
        (SLURM | {"SLURM_STEP_NODELIST": "n[1"}, InvalidArgumentError, r"cannot be read: 'n\[1'"),
        (SLURM | {"SLURM_STEP_NODELIST": "n[3-1]"}, InvalidArgumentError, "'3-1' is no range of"),
        (
            SLURM | {"SLURM_STEP_TASKS_PER_NODE": "2(y2)"},
            InvalidArgumentError,
            r"SLURM_STEP_TASKS_PER_NODE: cannot be read: '2\(y2\)'",
        ),
    ],
)
def test_wrong_environments(environ: dict[str, str], kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        place(environ)


def test_wrong_questions() -> None:
    spec = ClusterSpec({"worker": ["a:1"]})
    with pytest.raises(InvalidArgumentError, match=r"there is no job 'ps', only \['worker'\]"):
        spec.job_tasks("ps")
    with pytest.raises(InvalidArgumentError, match=r"job 'worker' has 1 task\(s\), so no task 1"):
        spec.task_address("worker", 1)


@pytest.mark.parametrize("resolver", [TorchrunClusterResolver, SlurmClusterResolver])
def test_a_launcher_that_did_not_start_this(resolver: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="not set, while none is; a cluster needs"):
        resolver(environ={})


def test_counts_of_tasks() -> None:
    assert expand_counts("1") == [1]
    assert expand_counts("2(x2),1,3") == [2, 2, 1, 3]
