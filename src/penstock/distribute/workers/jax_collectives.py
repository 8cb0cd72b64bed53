"""Collectives by jax.distributed: programs over one device of each process, gloo on CPUs.

jax must not have computed anything before the processes connect. Its own waits have no time-out, or
abort the process, so each wait runs in a daemon thread, which is abandoned at the time-out. When
strategy worker 0 ends, whose process runs the service of jax.distributed, jax aborts all other
processes.
"""

from __future__ import annotations

import inspect
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from functools import lru_cache
from typing import Any, TypeVar

import jax
import numpy as np

from penstock.delivery import Tensor
from penstock.distribute.workers.cluster import Membership
from penstock.distribute.workers.collectives import (
    ROOM,
    Peers,
    absence_error,
    check_number,
)
from penstock.element.columns import Array
from penstock.errors import FailedPreconditionError, InvalidArgumentError

Result = TypeVar("Result")

# jax aborts the process at its own time-out, so that must be long after ours.
MARGIN_SECONDS = 3600


class JaxCollectives(Peers):
    """The processes of jax.distributed."""

    def _exchange(self, row: Array) -> list[Array]:
        rows = self._compute("gather", jax.numpy.asarray(row, device=_own_devices("cpu")[0]))
        return list(np.asarray(rows))

    def _broadcast_first(self, row: Array) -> Array:
        return self._exchange(row)[0]

    def _sum(self, tensor: Tensor) -> Tensor:
        return self._compute("sum", tensor)

    def _compute(self, action: str, tensor: Any) -> Any:
        """Runs a `_program` on the tensors of all processes."""

        def compute() -> Any:
            rows = _one_per_process(tensor)
            result = _program(action, rows)(_stack_rows(tensor, rows)).addressable_data(0)
            # Accelerators compute asynchronously; a failure on the CPU must be raised here.
            on_cpu = next(iter(tensor.devices())).platform == "cpu"
            return jax.block_until_ready(result) if on_cpu else result

        return run_with_timeout(compute, self._timeout)

    def _as_small_array(self, tensor: Tensor) -> Array | None:
        device = next(iter(tensor.devices()))
        return np.asarray(tensor) if device.platform == "cpu" and tensor.nbytes <= ROOM else None

    def _convert_like(self, tensor: Tensor, array: Array) -> Tensor:
        return jax.device_put(array, next(iter(tensor.devices())))


def _own_devices(platform: str) -> list[Any]:
    return list(jax.local_devices(backend=platform))


def _one_per_process(tensor: Any) -> Any:
    """A sharding over the devices at the index of the tensor's device, one of each process."""
    device = next(iter(tensor.devices()))
    index = _own_devices(device.platform).index(device)
    return _rows(device.platform, index)


@lru_cache(maxsize=64)
def _rows(platform: str, index: int) -> Any:
    count = jax.process_count()
    devices = [jax.local_devices(process, platform)[index] for process in range(count)]
    mesh = jax.sharding.Mesh(np.array(devices), ("worker",))
    return jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("worker"))


def _stack_rows(tensor: Any, rows: Any) -> Any:
    shape = (len(rows.device_set), *tensor.shape)
    return jax.make_array_from_single_device_arrays(shape, rows, [tensor[None]])


@lru_cache(maxsize=64)
def _program(action: str, rows: Any) -> Any:
    everywhere = jax.sharding.NamedSharding(rows.mesh, jax.sharding.PartitionSpec())
    actions = {"gather": lambda stacked: stacked, "sum": lambda s: s.sum(0, dtype=s.dtype)}
    return jax.jit(actions[action], out_shardings=everywhere)


def run_with_timeout(action: Callable[[], Result], seconds: float) -> Result:
    """The result of an action; after `seconds` raises TimeoutError and abandons its thread."""
    outcome: Future[Result] = Future()

    def act() -> None:
        try:
            outcome.set_result(action())
        except BaseException as error:
            outcome.set_exception(error)

    threading.Thread(target=act, daemon=True, name="penstock-collective").start()
    if not wait([outcome], seconds).done:
        raise TimeoutError(f"no answer for {seconds:g} s")
    return outcome.result()


def connect(
    membership: Membership, timeout: float, implementation: str, call: str
) -> JaxCollectives:
    """Initializes jax.distributed unless that is done; blocks until all workers have joined."""
    if implementation != "AUTO":
        raise InvalidArgumentError(
            f"{call}: jax chooses between NCCL and gloo by the devices, so the implementation "
            f"must be AUTO, got {implementation}"
        )
    if jax.distributed.is_initialized():
        index, count = jax.process_index(), jax.process_count()
        known_as = f"process {index} of {count} in jax.distributed, which is initialized"
        check_number(membership, (index, count), known_as, call)
    else:
        _join_service(membership, timeout, call)
    return JaxCollectives(membership, timeout, call)


def _join_service(membership: Membership, timeout: float, call: str) -> None:
    # CPUs of several processes compute together by gloo.
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    try:
        run_with_timeout(lambda: _initialize(membership, timeout), timeout)
    except TimeoutError as error:
        peers = [index for index in range(membership.workers) if index != membership.worker]
        raise absence_error(membership, peers, timeout, call) from error
    except RuntimeError as error:
        raise FailedPreconditionError(
            f"{call}: jax.distributed cannot start ({error}); make the strategy before anything "
            "is computed with jax"
        ) from error


def _initialize(membership: Membership, timeout: float) -> None:
    host, port = membership.meeting_point
    limits = {
        "initialization_timeout": int(timeout) + MARGIN_SECONDS,
        "shutdown_timeout_seconds": max(int(timeout), 1),
    }
    known = inspect.signature(jax.distributed.initialize).parameters
    jax.distributed.initialize(
        f"[{host}]:{port}" if ":" in host else f"{host}:{port}",
        membership.workers,
        membership.worker,
        local_device_ids=_local_devices(membership),
        cluster_detection_method="deactivate",
        **{name: limit for name, limit in limits.items() if name in known},
    )


def _local_devices(membership: Membership) -> list[int] | None:
    """The accelerator of a process that shares its machine; None if it may use all of them."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "all,").split(",")
    if membership.local is None or membership.local[1] == 1 or len(visible) == 1:
        return None
    return [membership.local[0]]
