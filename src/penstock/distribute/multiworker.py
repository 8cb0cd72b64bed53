"""`MultiWorkerMirroredStrategy`: replicas in several processes, on one machine or many.

The processes are the *strategy workers*; here, `worker` means one of them. Every process runs the
same program. All processes must call reductions, gathers, aggregated assignments and the steps of
a dataset; everything else is local to a process.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from enum import Enum
from typing import Any, NamedTuple

import numpy as np

from penstock.distribute.cluster_resolver import find_resolver
from penstock.distribute.devices import Device, choose_backend, load_backend, resolve
from penstock.distribute.replicas import Replicas
from penstock.distribute.strategy import Strategy
from penstock.distribute.workers.cluster import ClusterResolver, Membership, membership
from penstock.distribute.workers.collectives import Peers, connect
from penstock.errors import DisagreementError, InvalidArgumentError, InvalidTypeError

CALL = "MultiWorkerMirroredStrategy"
TIMEOUT_VARIABLE = "PENSTOCK_WORKER_TIMEOUT"
TIMEOUT_SECONDS = 300.0


class CommunicationImplementation(Enum):
    """What adds tensors of several processes; RING is gloo, AUTO follows the devices.

    >>> CommunicationOptions(implementation=CommunicationImplementation.NCCL).implementation.value
    'NCCL'
    """

    AUTO = "AUTO"
    RING = "RING"
    NCCL = "NCCL"


class _CommunicationFields(NamedTuple):
    bytes_per_pack: int
    timeout_seconds: float | None
    implementation: CommunicationImplementation


class CommunicationOptions(_CommunicationFields):
    """How processes communicate.

    Args:
        bytes_per_pack: accepted as in TensorFlow, and ignored.
        timeout_seconds: how long to wait for another worker before an error is raised.
        implementation: a `CommunicationImplementation` or its name.

    >>> CommunicationOptions(implementation="RING").implementation
    <CommunicationImplementation.RING: 'RING'>
    """

    __slots__ = ()

    def __new__(
        cls,
        bytes_per_pack: int = 0,
        timeout_seconds: float | None = None,
        implementation: CommunicationImplementation | str = CommunicationImplementation.AUTO,
    ) -> CommunicationOptions:
        if bytes_per_pack < 0:
            raise InvalidArgumentError(
                f"CommunicationOptions: bytes_per_pack must be at least 0, got {bytes_per_pack!r}"
            )
        names = [one.value for one in CommunicationImplementation]
        if implementation not in (*CommunicationImplementation, *names):
            raise InvalidArgumentError(
                f"CommunicationOptions: implementation must be one of {', '.join(names)}, "
                f"got {implementation!r}"
            )
        if timeout_seconds is not None:
            _seconds(timeout_seconds, "CommunicationOptions: timeout_seconds")
        chosen = CommunicationImplementation(implementation)
        return super().__new__(cls, bytes_per_pack, timeout_seconds, chosen)


class MultiWorkerMirroredStrategy(Strategy):
    """Replicas in several processes, with the same variables; without a cluster, in this one.

    Args:
        cluster_resolver: Finds the workers and the number of this one; by default from the first
            of `TF_CONFIG`, torchrun's and Slurm's variables that is set.
        communication_options: `CommunicationOptions`.
        communication: The implementation alone; TensorFlow's experimental class has it.
        backend: "numpy", "torch" or "jax", as in `MirroredStrategy`. NumPy's arrays are sent
            by torch.distributed, so more than one process needs torch.
        devices: The devices of this process, equally many in each process; by default all devices,
            divided evenly among the processes of one machine if the launcher says how many.
        timeout: Seconds to wait for another worker before an error is raised; by default the
            variable PENSTOCK_WORKER_TIMEOUT, or 300.

    >>> MultiWorkerMirroredStrategy(devices=["CPU:0", "CPU:1"]).num_replicas_in_sync
    2
    """

    def __init__(
        self,
        cluster_resolver: Any = None,
        communication_options: Any = None,
        *,
        communication: Any = None,
        backend: str | None = None,
        devices: Any = None,
        timeout: float | None = None,
    ) -> None:
        if communication is not None and communication_options is None:
            communication_options = CommunicationOptions(implementation=communication)
        options = _options(communication_options)
        self._resolver = _resolver(cluster_resolver, os.environ)
        group = membership(self._resolver, CALL)
        # The devices come last: jax must connect to the other workers before it lists devices.
        name = load_backend(choose_backend(devices, backend, CALL), CALL).name
        seconds = _timeout(options, timeout, os.environ)
        peers = None
        if group.workers > 1:
            peers = connect(name, group, seconds, options.implementation.value, CALL)
        chosen, found = resolve(devices, name, CALL)
        here = _own_devices(
            found if devices else _select_devices(found, group), self._resolver, group
        )
        if peers is not None:
            _check_counts(peers, len(here), group)
        super().__init__(
            Replicas(chosen, here, workers=group.workers, worker=group.worker, collectives=peers)
        )

    @property
    def cluster_resolver(self) -> ClusterResolver:
        """The resolver of this cluster: `task_type`, `task_id`, `cluster_spec()`.

        >>> MultiWorkerMirroredStrategy(devices=["CPU:0"]).cluster_resolver.cluster_spec()
        ClusterSpec({})
        """
        return self._resolver


def _options(given: Any) -> CommunicationOptions:
    if given is not None and not isinstance(given, CommunicationOptions):
        raise InvalidTypeError(
            f"{CALL}: communication_options must be CommunicationOptions, got {given!r}"
        )
    return CommunicationOptions() if given is None else given


def _resolver(given: Any, environ: Mapping[str, str]) -> ClusterResolver:
    if given is None:
        return find_resolver(environ)
    if not isinstance(given, ClusterResolver):
        raise InvalidTypeError(
            f"{CALL}: cluster_resolver must be a ClusterResolver, got {given!r}; addresses go into "
            "SimpleClusterResolver(['host:port', ...], task_id=0)"
        )
    return given


def _timeout(
    options: CommunicationOptions, given: float | None, environ: Mapping[str, str]
) -> float:
    if options.timeout_seconds is not None:
        return options.timeout_seconds
    if given is not None:
        return _seconds(given, f"{CALL}: timeout")
    if text := environ.get(TIMEOUT_VARIABLE):
        return _seconds(text, TIMEOUT_VARIABLE)
    return TIMEOUT_SECONDS


def _seconds(given: Any, name: str) -> float:
    try:
        seconds = float(given)
    except (TypeError, ValueError):
        seconds = float("nan")
    if not 0 < seconds < float("inf"):
        raise InvalidArgumentError(f"{name} must be a positive number of seconds, got {given!r}")
    return seconds


def _select_devices(devices: Sequence[Device], group: Membership) -> Sequence[Device]:
    """The accelerators of this machine that this process uses."""
    if group.local is None or devices[0].kind == "CPU" or len(devices) < group.local[1]:
        return devices
    index, count = group.local
    return devices[index * len(devices) // count : (index + 1) * len(devices) // count]


def _own_devices(
    devices: Sequence[Device], resolver: ClusterResolver, group: Membership
) -> tuple[Device, ...]:
    if group.workers == 1:
        return tuple(devices)
    task = f"/job:{resolver.task_type}/replica:0/task:{resolver.task_id}"
    return tuple(replace(device, task=task) for device in devices)


def _check_counts(peers: Peers, count: int, group: Membership) -> None:
    counts = [int(one[0]) for one in peers.gather(np.array([count]))]
    for index, other in enumerate(counts):
        if other != counts[0]:
            raise DisagreementError(
                f"{CALL}: {group.members[0]} has {counts[0]} device(s) but {group.members[index]} "
                f"has {other}; give every worker as many (devices=)"
            )
