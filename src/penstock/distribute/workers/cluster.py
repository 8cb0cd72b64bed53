"""Clusters: the processes of a strategy, their addresses, and the number of this process.

A resolver reads the format of the launcher that started the processes. `membership` turns that into
a `Membership`, which is all that strategies use.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from penstock.errors import DisagreementError, InvalidArgumentError, InvalidTypeError

# The jobs that train together, in the order of worker numbers; an evaluator runs alone.
TRAINING = ("chief", "worker")
ALONE = "evaluator"


class ClusterSpec:
    """The addresses of the tasks of every job: a list, or a dict by the tasks' numbers.

    >>> spec = ClusterSpec({"worker": ["a:1", "b:1"]})
    >>> spec.num_tasks("worker"), spec.task_address("worker", 1)
    (2, 'b:1')
    >>> spec.job_tasks("worker")
    ['a:1', 'b:1']
    >>> part = ClusterSpec({"worker": {1: "b:1"}})
    >>> part.task_indices("worker"), part.job_tasks("worker"), part.as_dict()
    ([1], [None, 'b:1'], {'worker': {1: 'b:1'}})
    """

    def __init__(self, cluster: Any) -> None:
        if isinstance(cluster, ClusterSpec):
            cluster = cluster.as_dict()
        if not isinstance(cluster, Mapping):
            raise InvalidTypeError(
                "ClusterSpec: must be a dict such as {'worker': ['host:port', ...]}, "
                f"got {cluster!r}"
            )
        self._jobs = {str(job): _addresses(job, tasks) for job, tasks in cluster.items()}

    @property
    def jobs(self) -> list[str]:
        return list(self._jobs)

    def as_dict(self) -> dict[str, Any]:
        """The addresses as they can be given: a list where no task is missing, else a dict."""
        return {job: _list_or_dict(tasks) for job, tasks in self._jobs.items()}

    def task_indices(self, job_name: str) -> list[int]:
        """The numbers of a job's tasks, in order."""
        return list(self._tasks_of(job_name))

    def job_tasks(self, job_name: str) -> list[str | None]:
        """The addresses of a job's tasks; None for a task that the cluster does not name."""
        tasks = self._tasks_of(job_name)
        return [tasks.get(index) for index in range(max(tasks, default=-1) + 1)]

    def num_tasks(self, job_name: str) -> int:
        return len(self._tasks_of(job_name))

    def task_address(self, job_name: str, task_index: int) -> str:
        tasks = self._tasks_of(job_name)
        if task_index not in tasks:
            raise InvalidArgumentError(
                f"ClusterSpec: job {job_name!r} has {len(tasks)} task(s), so no task {task_index}"
            )
        return tasks[task_index]

    def _tasks_of(self, job_name: str) -> dict[int, str]:
        if job_name not in self._jobs:
            raise InvalidArgumentError(
                f"ClusterSpec: there is no job {job_name!r}, only {self.jobs}; name one of them"
            )
        return self._jobs[job_name]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ClusterSpec) and self._jobs == other._jobs

    __hash__ = None  # type: ignore[assignment]

    def __bool__(self) -> bool:
        return bool(self._jobs)

    def __repr__(self) -> str:
        return f"ClusterSpec({self.as_dict()})"


def _addresses(job: object, tasks: Any) -> dict[int, str]:
    """The addresses by the tasks' numbers, in their order."""
    named = tasks
    if isinstance(tasks, list | tuple):
        named = dict(enumerate(tasks))
    if not isinstance(named, Mapping) or not all(map(_is_task, named.items())):
        raise InvalidTypeError(
            f"ClusterSpec: job {job!r} must be a list of 'host:port', got {tasks!r}"
        )
    numbered = {int(index): address for index, address in named.items()}
    return dict(sorted(numbered.items()))


def _is_task(task: tuple[Any, Any]) -> bool:
    index, address = task
    return str(index).isdigit() and isinstance(address, str)


def _list_or_dict(tasks: dict[int, str]) -> list[str] | dict[int, str]:
    return list(tasks.values()) if list(tasks) == list(range(len(tasks))) else dict(tasks)


class ClusterResolver(ABC):
    """Finds the cluster and the task of this process; subclass it for a launcher of your own.

    `task_type` and `task_id` are None where there is no cluster.

    >>> class TwoHosts(ClusterResolver):
    ...     task_type, task_id = "worker", 0
    ...     def cluster_spec(self):
    ...         return ClusterSpec({"worker": ["a:1", "b:1"]})
    >>> TwoHosts().cluster_spec(), TwoHosts().master()
    (ClusterSpec({'worker': ['a:1', 'b:1']}), 'a:1')
    """

    task_type: str | None = None
    task_id: int | None = None
    rpc_layer: str | None = None
    """The protocol that `master()` puts before the address, as in "grpc://a:1"."""
    local: tuple[int, int] | None = None
    """The number of this process on its machine and their count; None if not known."""

    @abstractmethod
    def cluster_spec(self) -> ClusterSpec:
        """The jobs and addresses of the cluster; empty if there is none."""

    def master(
        self, task_type: str | None = None, task_id: int | None = None, rpc_layer: str | None = None
    ) -> str:
        """The address of a task; by default of worker 0, to which all connect ("" if alone)."""
        spec = self.cluster_spec()
        if task_type is not None:
            address = spec.task_address(task_type, task_id or 0)
        else:
            members = list_members(spec)
            address = members[0].address if members else ""
        return self._with_layer(address, rpc_layer)

    def _with_layer(self, address: str, rpc_layer: str | None) -> str:
        layer = rpc_layer or self.rpc_layer
        return f"{layer}://{address}" if layer and address else address

    def num_accelerators(
        self,
        task_type: str | None = None,
        task_id: int | None = None,
        config_proto: Any = None,
    ) -> dict[str, int]:
        """The accelerators of a task by their kind, as far as the launcher says it.

        Most do not: a strategy finds the devices of its backend on its own.

        >>> from penstock.distribute.cluster_resolver import SimpleClusterResolver
        >>> SimpleClusterResolver(["a:1"]).num_accelerators()
        {}
        """
        return {}

    @property
    def environment(self) -> str:
        return ""


@dataclass(frozen=True)
class Member:
    """One process of a cluster; its text is how errors name it."""

    task: str
    address: str

    def __str__(self) -> str:
        return f"{self.task} ({self.address})" if self.address else self.task


@dataclass(frozen=True)
class Membership:
    """The strategy workers, which all connect to the first member, and the number of this one."""

    members: tuple[Member, ...] = (Member("worker 0", ""),)
    worker: int = 0
    local: tuple[int, int] | None = None

    @property
    def workers(self) -> int:
        return len(self.members)

    @property
    def meeting_point(self) -> tuple[str, int]:
        """Host and port of the first member."""
        host, _, port = self.members[0].address.rpartition(":")
        return host.strip("[]"), int(port)


def membership(resolver: ClusterResolver, call: str) -> Membership:
    """The membership of this process according to a resolver; alone if there is no cluster."""
    spec = resolver.cluster_spec()
    if not spec or resolver.task_type == ALONE:
        return Membership(local=resolver.local)
    if unknown := set(spec.jobs) - {*TRAINING, ALONE}:
        raise InvalidArgumentError(
            f"{call}: the cluster has the job(s) {sorted(unknown)}, but only 'chief' and 'worker' "
            "train together (there are no parameter servers); leave them out"
        )
    members = list_members(spec)
    _check_complete(spec, call)
    worker = _position(members, resolver, call)
    if len(members) > 1:
        _check_address(members[0], call)
    return Membership(members, worker, resolver.local)


def list_members(spec: ClusterSpec) -> tuple[Member, ...]:
    """The processes that train together, in the order of their worker numbers."""
    return tuple(
        Member(f"{job} {index}", address or "")
        for job in TRAINING
        if job in spec.jobs
        for index, address in enumerate(spec.job_tasks(job))
    )


def _check_complete(spec: ClusterSpec, call: str) -> None:
    for job in spec.jobs:
        if spec.num_tasks(job) != len(spec.job_tasks(job)):
            raise InvalidArgumentError(
                f"{call}: the cluster names only the tasks {spec.task_indices(job)} of {job!r}; "
                "name every task, from 0"
            )


def _position(members: Sequence[Member], resolver: ClusterResolver, call: str) -> int:
    if resolver.task_type is None and resolver.task_id is None and len(members) == 1:
        return 0
    task = f"{resolver.task_type} {resolver.task_id}"
    if resolver.task_type is None or resolver.task_id is None:
        raise InvalidArgumentError(
            f"{call}: the cluster has {len(members)} processes, but it is not known which of them "
            f"this one is (task {task}); set the task's type and index (task_type and task_id)"
        )
    names = [member.task for member in members]
    if task not in names:
        raise DisagreementError(
            f"{call}: this process is {task!r}, but the cluster has only {names}; "
            "correct the task or the cluster"
        )
    return names.index(task)


def _check_address(first: Member, call: str) -> None:
    host, _, port = first.address.rpartition(":")
    if not host or not port.isdigit():
        raise InvalidArgumentError(
            f"{call}: all workers connect to {first.task}, so it needs an address 'host:port', "
            f"got {first.address!r}"
        )
