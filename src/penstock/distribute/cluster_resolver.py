"""Resolvers, one per launcher: explicit arguments, `TF_CONFIG`, torchrun's and Slurm's variables.

A resolver reads its environment (by default `os.environ`) once, when it is created. It raises an
error that names the variables if some are missing or contradict each other.
"""

from __future__ import annotations

import itertools
import json
import os
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from penstock.distribute.workers.cluster import ClusterResolver, ClusterSpec, membership
from penstock.errors import DisagreementError, InvalidArgumentError, InvalidTypeError
from penstock.missing_names import missing_from_distribute, refuse_names

__all__ = [
    "ClusterResolver",
    "ClusterSpec",
    "SimpleClusterResolver",
    "SlurmClusterResolver",
    "TPUClusterResolver",
    "TFConfigClusterResolver",
    "TorchrunClusterResolver",
    "find_resolver",
]

Environment = Mapping[str, str]

# Above the ports that Linux gives to outgoing connections, so that these are not taken by chance.
SLURM_PORTS = range(61000, 65000)


class _KnownCluster(ClusterResolver):
    """A resolver whose constructor finds the whole cluster."""

    _spec: ClusterSpec

    def cluster_spec(self) -> ClusterSpec:
        return self._spec


class SimpleClusterResolver(_KnownCluster):
    """Explicit arguments: a cluster, or only the workers' addresses, and the task of this process.

    >>> SimpleClusterResolver(["a:1", "b:1"], task_id=1).master()
    'a:1'
    """

    def __init__(
        self,
        cluster_spec: Any,
        master: str = "",
        task_type: str | None = None,
        task_id: int | None = None,
        environment: str = "",
        num_accelerators: dict[str, int] | None = None,
        rpc_layer: str | None = None,
    ) -> None:
        listed = isinstance(cluster_spec, list | tuple)
        self._spec = ClusterSpec({"worker": cluster_spec} if listed else cluster_spec)
        self._master = master
        self.task_type = "worker" if listed and task_type is None else task_type
        self.task_id = task_id
        self._environment = environment
        self._accelerators = dict(num_accelerators or {})
        self.rpc_layer = rpc_layer

    @property
    def environment(self) -> str:
        return self._environment

    def num_accelerators(
        self,
        task_type: str | None = None,
        task_id: int | None = None,
        config_proto: Any = None,
    ) -> dict[str, int]:
        """The accelerators of a task by their kind, as they were given.

        >>> SimpleClusterResolver(["a:1"], num_accelerators={"GPU": 2}).num_accelerators()
        {'GPU': 2}
        """
        return dict(self._accelerators)

    def master(
        self, task_type: str | None = None, task_id: int | None = None, rpc_layer: str | None = None
    ) -> str:
        if task_type is None and self._master:
            return self._with_layer(self._master, rpc_layer)
        return super().master(task_type, task_id, rpc_layer)


class TFConfigClusterResolver(_KnownCluster):
    """`TF_CONFIG`: JSON with `cluster` (addresses by job) and `task` (type and index).

    `rpc_layer` may be there as well; arguments go before what is there.

    >>> config = '{"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 1}}'
    >>> resolver = TFConfigClusterResolver(environ={"TF_CONFIG": config})
    >>> resolver.cluster_spec(), resolver.task_type, resolver.task_id
    (ClusterSpec({'worker': ['a:1', 'b:1']}), 'worker', 1)
    """

    def __init__(
        self,
        task_type: str | None = None,
        task_id: int | None = None,
        rpc_layer: str | None = None,
        environment: str | None = None,
        *,
        environ: Environment | None = None,
    ) -> None:
        config = _tf_config(os.environ if environ is None else environ)
        self._spec = ClusterSpec(config.get("cluster") or {})
        task = config.get("task") or {}
        if not isinstance(task, dict):
            raise InvalidTypeError(
                f"TF_CONFIG: task must be a dict with type and index, got {task!r}"
            )
        kind = task_type if task_type is not None else task.get("type")
        self.task_type = None if kind is None else str(kind)
        index = task_id if task_id is not None else task.get("index")
        self.task_id = None if index is None else _number(str(index), "TF_CONFIG: task.index")
        self.rpc_layer = config.get("rpc_layer") if rpc_layer is None else rpc_layer
        self._environment = environment or ""

    @property
    def environment(self) -> str:
        return self._environment


def _tf_config(environ: Environment) -> dict[str, Any]:
    text = environ.get("TF_CONFIG") or "{}"
    try:
        config = json.loads(text)
    except json.JSONDecodeError as error:
        raise InvalidArgumentError(f"TF_CONFIG: is not JSON ({error}): {text!r}") from None
    if not isinstance(config, dict):
        raise InvalidTypeError(f"TF_CONFIG: must be a dict with cluster and task, got {text!r}")
    return config


class TorchrunClusterResolver(_KnownCluster):
    """torchrun's variables: RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT; perhaps LOCAL_RANK.

    torchrun gives only the address of worker 0; the other addresses of `cluster_spec()` are empty.

    >>> environ = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "a", "MASTER_PORT": "1"}
    >>> TorchrunClusterResolver(environ=environ).cluster_spec()
    ClusterSpec({'worker': ['a:1', '']})
    """

    task_type = "worker"

    def __init__(self, *, environ: Environment | None = None) -> None:
        given = os.environ if environ is None else environ
        needed = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
        rank, size, host, port = _require_variables(given, needed, "torchrun")
        workers = _number(size, "WORLD_SIZE")
        self.task_id = _check_below(_number(rank, "RANK"), workers, "RANK", "WORLD_SIZE")
        self._spec = ClusterSpec({"worker": [f"{host}:{port}"] + [""] * (workers - 1)})
        self.local = _read_local(given, "LOCAL_RANK", "LOCAL_WORLD_SIZE")


class SlurmClusterResolver(_KnownCluster):
    """Slurm's variables of a step that srun started: every task of it is a worker.

    Ports follow from the job's number, so that two jobs on one machine use different ports, unless
    `port_base` is given. Addresses other than worker 0's assume that Slurm placed tasks by blocks.

    Args:
        port_base: The port of the first task of a machine.
        jobs: How many tasks each job has, such as {"chief": 1, "worker": 3}; the tasks are dealt
            to the jobs in the order of their names.
        tasks_per_node: How many tasks each machine has, where Slurm does not say it.
        rpc_layer: The protocol that `master()` puts before the address.
        gpus_per_node: Accepted as in TensorFlow, and ignored, as the next two: strategies divide
            the GPUs of a machine among its tasks.

    >>> environ = {"SLURM_PROCID": "1", "SLURM_NTASKS": "3", "SLURM_STEP_NODELIST": "n[1-3]"}
    >>> SlurmClusterResolver(8888, environ=environ).cluster_spec()
    ClusterSpec({'worker': ['n1:8888', 'n2:8888', 'n3:8888']})
    >>> resolver = SlurmClusterResolver(8888, jobs={"chief": 1, "worker": 2}, environ=environ)
    >>> resolver.cluster_spec(), resolver.task_type, resolver.task_id
    (ClusterSpec({'chief': ['n1:8888'], 'worker': ['n2:8888', 'n3:8888']}), 'worker', 0)
    """

    def __init__(
        self,
        port_base: int | None = None,
        *,
        jobs: Mapping[str, int] | None = None,
        tasks_per_node: int | None = None,
        rpc_layer: str | None = None,
        gpus_per_node: int | None = None,
        gpus_per_task: int | None = None,
        auto_set_gpu: bool = True,
        environ: Environment | None = None,
    ) -> None:
        given = os.environ if environ is None else environ
        count = "SLURM_STEP_NUM_TASKS" if "SLURM_STEP_NUM_TASKS" in given else "SLURM_NTASKS"
        rank, size, nodes = _require_variables(
            given, ("SLURM_PROCID", count, "SLURM_STEP_NODELIST"), "Slurm"
        )
        workers = _number(size, count)
        own = _check_below(_number(rank, "SLURM_PROCID"), workers, "SLURM_PROCID", count)
        port = _slurm_port(given) if port_base is None else port_base
        hosts = expand_nodes(nodes)
        counts = _tasks_per_node(given, workers, nodes, tasks_per_node)
        pairs = zip(hosts, counts, strict=True)
        tasks = [f"{host}:{port + task}" for host, many in pairs for task in range(many)]
        dealt = _deal_tasks({"worker": workers} if jobs is None else jobs, tasks)
        self._spec = ClusterSpec(dealt)
        self.task_type, self.task_id = [
            (job, index) for job in sorted(dealt) for index in range(len(dealt[job]))
        ][own]
        self.rpc_layer = rpc_layer
        self.local = self._read_local(given, counts)

    @staticmethod
    def _read_local(environ: Environment, counts: Sequence[int]) -> tuple[int, int] | None:
        if "SLURM_LOCALID" not in environ or "SLURM_NODEID" not in environ:
            return None
        node = _number(environ["SLURM_NODEID"], "SLURM_NODEID")
        _check_below(node, len(counts), "SLURM_NODEID", "the number of nodes")
        return _number(environ["SLURM_LOCALID"], "SLURM_LOCALID"), counts[node]


def _slurm_port(environ: Environment) -> int:
    job = _number(environ.get("SLURM_JOB_ID", "0"), "SLURM_JOB_ID")
    return SLURM_PORTS[job % len(SLURM_PORTS)]


def _deal_tasks(jobs: Mapping[str, int], tasks: Sequence[str]) -> dict[str, list[str]]:
    """The tasks of each job, in the order of the jobs' names."""
    if sum(jobs.values()) != len(tasks):
        raise DisagreementError(
            f"SlurmClusterResolver: jobs={dict(jobs)!r} has {sum(jobs.values())} tasks, but Slurm "
            f"has started {len(tasks)}; give each task a job"
        )
    left = iter(tasks)
    return {job: list(itertools.islice(left, jobs[job])) for job in sorted(jobs)}


def _tasks_per_node(
    environ: Environment, workers: int, nodelist: str, stated: int | None
) -> list[int]:
    nodes = len(expand_nodes(nodelist))
    if stated is not None:
        name = f"tasks_per_node={stated}"
        counts = [stated] * nodes
    elif "SLURM_STEP_TASKS_PER_NODE" in environ:
        name = "SLURM_STEP_TASKS_PER_NODE"
        counts = expand_counts(environ[name])
    else:
        name = "the number of tasks, dealt out evenly,"
        counts = [workers // nodes + (node < workers % nodes) for node in range(nodes)]
    if len(counts) != nodes or sum(counts) != workers:
        raise DisagreementError(
            f"Slurm: {name} gives {counts} tasks, but there are {workers} tasks on {nodes} node(s) "
            f"({nodelist}); start the step with srun, or pass a SimpleClusterResolver"
        )
    return counts


class TPUClusterResolver(_KnownCluster):
    """Raises a ValueError, as TensorFlow's does on a machine without TPUs.

    Programs catch it and use another strategy. `TPUStrategy()` needs no resolver: jax finds the
    TPUs of a machine by itself.

    >>> try:
    ...     resolver = TPUClusterResolver()
    ... except ValueError:
    ...     print("no TPU")
    no TPU
    """

    def __init__(self, tpu: str | None = None, *_: Any, **__: Any) -> None:
        raise InvalidArgumentError(
            f"TPUClusterResolver: cannot connect to the TPU {tpu!r}; TPUStrategy() without a "
            "resolver uses the TPUs that jax finds"
        )

    @staticmethod
    def connect(tpu: str | None = None, zone: str | None = None, project: str | None = None) -> Any:
        """Raises the same error.

        >>> TPUClusterResolver.connect("local")
        Traceback (most recent call last):
            ...
        penstock.errors.InvalidArgumentError: TPUClusterResolver: cannot connect to the TPU ...
        """
        return TPUClusterResolver(tpu, zone, project)


def find_resolver(environ: Environment) -> ClusterResolver:
    """The resolver for this process's launcher: TF_CONFIG, then torchrun, then Slurm.

    >>> torchrun = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "a", "MASTER_PORT": "1"}
    >>> resolver = find_resolver(torchrun)
    >>> type(resolver).__name__, resolver.task_id
    ('TorchrunClusterResolver', 1)
    """
    found: list[ClusterResolver] = []
    if environ.get("TF_CONFIG"):
        found.append(TFConfigClusterResolver(environ=environ))
    if "RANK" in environ or "WORLD_SIZE" in environ:
        found.append(TorchrunClusterResolver(environ=environ))
    found = [resolver for resolver in found if resolver.cluster_spec()]
    if len(found) == 2:
        _check_agreement(*found)
    # srun often starts one torchrun per machine: then Slurm's tasks are not the workers.
    if not found and "SLURM_PROCID" in environ and "SLURM_STEP_NODELIST" in environ:
        found.append(SlurmClusterResolver(environ=environ))
    return found[0] if found else TFConfigClusterResolver(environ={})


def _check_agreement(config: ClusterResolver, torchrun: ClusterResolver) -> None:
    one, other = membership(config, "TF_CONFIG"), membership(torchrun, "torchrun")
    if (one.worker, one.workers) != (other.worker, other.workers):
        raise DisagreementError(
            f"TF_CONFIG says worker {one.worker} of {one.workers}, but RANK and WORLD_SIZE say "
            f"worker {other.worker} of {other.workers}; unset one of them, or pass a "
            "cluster_resolver"
        )


def _require_variables(environ: Environment, names: Sequence[str], source: str) -> list[str]:
    if missing := [name for name in names if not environ.get(name)]:
        there = [name for name in names if environ.get(name)]
        raise InvalidArgumentError(
            f"{source}: {', '.join(missing)} not set, while {', '.join(there) or 'none'} is; "
            f"a cluster needs {', '.join(names)}: set all of them or none"
        )
    return [environ[name] for name in names]


def _number(text: str, name: str) -> int:
    if not text.isdigit():
        raise InvalidArgumentError(f"{name} must be a whole number, got {text!r}")
    return int(text)


def _check_below(number: int, limit: int, name: str, limit_name: str) -> int:
    if number >= limit:
        raise DisagreementError(f"{name} must be less than {limit_name}, got {number} and {limit}")
    return number


def _read_local(environ: Environment, index: str, count: str) -> tuple[int, int] | None:
    if not environ.get(index) or not environ.get(count):
        return None
    size = _number(environ[count], count)
    return _check_below(_number(environ[index], index), size, index, count), size


# Slurm's notations: `node[01-03,7]` for machines, `2(x3),1` for the tasks on each of them.
PART = re.compile(r"(?:[^\[\],]|\[[\d,\-]+\])+")
PIECE = re.compile(r"\[([\d,\-]+)\]|([^\[\]]+)")
RANGE = re.compile(r"(\d+)(?:-(\d+))?")
COUNT = re.compile(r"(\d+)(?:\(x(\d+)\))?")


def expand_nodes(text: str) -> list[str]:
    """The names of the machines, in order.

    >>> expand_nodes("a[08-10,2],b")
    ['a08', 'a09', 'a10', 'a2', 'b']
    """
    if not re.fullmatch(f"{PART.pattern}(,{PART.pattern})*", text):
        raise InvalidArgumentError(
            f"SLURM_STEP_NODELIST: cannot be read: {text!r}; a list of machines is like "
            "'node[01-03,7],login'"
        )
    return [name for part in PART.findall(text) for name in _names(part)]


def _names(part: str) -> list[str]:
    choices = [
        [number for one in ranges.split(",") for number in _numbers(one)] if ranges else [fixed]
        for ranges, fixed in PIECE.findall(part)
    ]
    return ["".join(chosen) for chosen in itertools.product(*choices)]


def _numbers(text: str) -> list[str]:
    match = RANGE.fullmatch(text)
    if match is None or int(match[2] or match[1]) < int(match[1]):
        raise InvalidArgumentError(f"SLURM_STEP_NODELIST: {text!r} is no range of numbers")
    first, last = match[1], match[2] or match[1]
    return [str(number).zfill(len(first)) for number in range(int(first), int(last) + 1)]


def expand_counts(text: str) -> list[int]:
    """How many tasks each machine has, in order.

    >>> expand_counts("2(x3),1")
    [2, 2, 2, 1]
    """
    matches = [COUNT.fullmatch(part) for part in text.split(",")]
    if not all(matches):
        raise InvalidArgumentError(
            f"SLURM_STEP_TASKS_PER_NODE: cannot be read: {text!r}; counts are like '2(x3),1'"
        )
    return [int(match[1]) for match in matches if match for _ in range(int(match[2] or 1))]


if not TYPE_CHECKING:  # A type checker would take any name.
    __getattr__ = refuse_names("distribute.cluster_resolver", __all__, missing_from_distribute)
