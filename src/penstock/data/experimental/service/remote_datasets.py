"""Reading from a data service: datasets are registered there, and clients read their elements.

Wrong arguments raise at the call. Errors of registering raise when the dataset is applied, errors
of a job when it is iterated over.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from penstock.data import arguments as check
from penstock.data.dataset import Dataset
from penstock.data.experimental.transformations import Transformation
from penstock.element.spec import relax
from penstock.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    NotAConfigError,
    NotFoundError,
    OpError,
    UnfitTypeError,
)
from penstock.plan import nodes
from penstock.plan.options import ShardingPolicy
from penstock.plan.references import decode_spec
from penstock.plan.shape import Form

_COMPRESSIONS = ("AUTO", None, "SNAPPY")
_MODES = {
    "parallel_epochs": ShardingPolicy.OFF,
    "distributed_epoch": ShardingPolicy.DYNAMIC,
}
_TARGETS = ("AUTO", "ANY", "LOCAL")


@dataclass(frozen=True)
class CrossTrainerCache:
    """Several trainers read the same elements of one job, which workers compute once.

    Args:
        trainer_id: Names a trainer; readers with one id share the elements between them.

    >>> CrossTrainerCache(trainer_id="learning rate 0.1")
    CrossTrainerCache(trainer_id='learning rate 0.1')
    """

    trainer_id: Any

    def __post_init__(self) -> None:
        if not self.trainer_id and self.trainer_id != 0:
            raise InvalidArgumentError(
                f"CrossTrainerCache: trainer_id must name a trainer, got {self.trainer_id!r}"
            )


def distribute(
    processing_mode: ShardingPolicy | str,
    service: str | tuple[str, str],
    job_name: str | None = None,
    consumer_index: int | None = None,
    num_consumers: int | None = None,
    max_outstanding_requests: int | None = None,
    data_transfer_protocol: str | None = None,
    compression: str | None = "AUTO",
    cross_trainer_cache: CrossTrainerCache | None = None,
    target_workers: str | None = "AUTO",
) -> Transformation:
    """Lets a data service compute the elements of a dataset; for `Dataset.apply`.

    Args:
        processing_mode: "distributed_epoch" or `ShardingPolicy.DYNAMIC`: the workers share the
            dataset, and every element comes once. "parallel_epochs" or OFF: every worker computes
            all of it. The other policies divide it beforehand, among the
            `DispatcherConfig.worker_addresses`.
        service: "grpc://host:port" for a dispatcher, or "local://4" for four processes on this
            machine that run as long as the iterator; "local://1..8" for as many as it can use.
            "ray://auto" for actors of the running Ray: see docs/ray.md.
        job_name: Datasets with the same job name share the elements of one job; each element goes
            to the reader that asks first.
        consumer_index: For coordinated reads: the index of this consumer.
        num_consumers: For coordinated reads: the number of consumers. In each round they get
            consecutive elements of the dataset.
        max_outstanding_requests: How many elements to request ahead; by default, enough to keep
            all workers busy, within `Options.service.reader_memory`.
        data_transfer_protocol: "shm" or "tcp"; by default "shm" where it is possible.
        compression: "AUTO" (where it pays), None or "SNAPPY".
        cross_trainer_cache: Lets several trainers read the same elements, each of them all.
        target_workers: "AUTO", "ANY" or "LOCAL", which reads only from workers on this host.

    >>> import penstock
    >>> numbers = penstock.data.Dataset.range(4).map(lambda x: x + 1)
    >>> print(*numbers.apply(distribute("distributed_epoch", "local://1")))
    1 2 3 4
    """
    where = "service.distribute"
    options = ReadOptions(
        where,
        processing_mode=processing_mode,
        job_name=job_name,
        consumer_index=consumer_index,
        num_consumers=num_consumers,
        max_outstanding_requests=max_outstanding_requests,
        data_transfer_protocol=data_transfer_protocol,
        cross_trainer_cache=cross_trainer_cache,
        target_workers=target_workers,
    )
    _check_compression(where, compression)

    def apply(dataset: Dataset) -> Dataset:
        plan = check.plan_of(where, "dataset", dataset)
        url, fields = _parse_url(where, service), options.fields()
        name = _register(url, plan, dataset.element_spec)
        return Dataset(
            nodes.Distribute(plan, url, compression=compression, dataset_id=name, **fields)
        )

    return apply


def register_dataset(
    service: str | tuple[str, str],
    dataset: Dataset,
    compression: str | None = "AUTO",
    dataset_id: str | bytes | None = None,
) -> bytes:
    """Registers a dataset with a service; clients read it with `from_dataset_id`.

    Args:
        service: "grpc://host:port".
        dataset: The dataset.
        compression: "AUTO", None or "SNAPPY"; checked and ignored, each reader chooses its own.
        dataset_id: The id of the dataset; by default the service numbers its datasets.

    Returns:
        The id of the dataset, as bytes.

    >>> import penstock
    >>> with penstock.data.experimental.service.DispatchServer() as dispatcher:
    ...     register_dataset(dispatcher.target, Dataset.range(4), dataset_id="numbers")
    b'numbers'
    """
    from penstock.service.host import services

    where = "service.register_dataset"
    _check_compression(where, compression)
    name = None if dataset_id is None else check.text(where, "dataset_id", dataset_id) or None
    plan = check.plan_of(where, "dataset", dataset)
    url = _dispatcher_url(where, service)
    return services.register(
        url, plan, spec=dataset.element_spec, dataset_id=name, lasting=True
    ).encode()


def from_dataset_id(
    processing_mode: ShardingPolicy | str,
    service: str | tuple[str, str],
    dataset_id: str | bytes,
    element_spec: Any = None,
    job_name: str | None = None,
    consumer_index: int | None = None,
    num_consumers: int | None = None,
    max_outstanding_requests: int | None = None,
    data_transfer_protocol: str | None = None,
    cross_trainer_cache: CrossTrainerCache | None = None,
    target_workers: str | None = "AUTO",
) -> Dataset:
    """The elements of a dataset that was registered with `register_dataset`.

    Arguments that are not listed here mean what they mean for `distribute`.

    Args:
        service: "grpc://host:port".
        dataset_id: The id that `register_dataset` returned.
        element_spec: The spec of an element; by default as it was registered.

    >>> import penstock
    >>> service = penstock.data.experimental.service
    >>> with service.DispatchServer() as dispatcher:
    ...     address = dispatcher.target.removeprefix("grpc://")
    ...     with service.WorkerServer(service.WorkerConfig(dispatcher_address=address)):
    ...         name = service.register_dataset(dispatcher.target, penstock.data.Dataset.range(4))
    ...         print(*from_dataset_id("distributed_epoch", dispatcher.target, name))
    0 1 2 3
    """
    where = "service.from_dataset_id"
    options = ReadOptions(
        where,
        processing_mode=processing_mode,
        job_name=job_name,
        consumer_index=consumer_index,
        num_consumers=num_consumers,
        max_outstanding_requests=max_outstanding_requests,
        data_transfer_protocol=data_transfer_protocol,
        cross_trainer_cache=cross_trainer_cache,
        target_workers=target_workers,
    )
    url, fields = _dispatcher_url(where, service), options.fields()
    name = _parse_dataset_id(where, dataset_id)
    spec, count = _look_up(where, url, name, element_spec)
    return Dataset(
        nodes.Distribute(
            None, url, compression="AUTO", dataset_id=name, element=spec, known=count, **fields
        )
    )


def status(service: str | tuple[str, str]) -> dict[str, Any]:
    """The state of a service as plain data: its jobs, workers, streams, leases and rates.

    Args:
        service: "grpc://host:port".

    >>> import penstock
    >>> with penstock.data.experimental.service.DispatchServer() as dispatcher:
    ...     found = status(dispatcher.target)
    >>> found["workers"], found["jobs"]
    ([], [])
    """
    from penstock.service.host import services

    where = "service.status"
    return services.find_session(_dispatcher_url(where, service), where).status()


def merge_states(states: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Merges the states of several readers of a named job, for any number of new readers.

    Args:
        states: The result of `state_dict` of each reader's iterator.

    >>> import penstock
    >>> service = penstock.data.experimental.service
    >>> with service.DispatchServer() as dispatcher:
    ...     address = dispatcher.target.removeprefix("grpc://")
    ...     with service.WorkerServer(service.WorkerConfig(dispatcher_address=address)):
    ...         def read():
    ...             job = distribute("distributed_epoch", dispatcher.target, job_name="training")
    ...             return iter(Dataset.range(100).apply(job))
    ...         first, second = read(), read()
    ...         got = [int(next(reader)) for reader in (first, second)]
    ...         states = [reader.state_dict() for reader in (first, second)]
    ...         for reader in (first, second):
    ...             reader.close()
    ...         third = read()
    ...         third.load_state_dict(merge_states(states))
    ...         print(sorted(got + [int(x) for x in third]) == list(range(100)))
    True
    """
    from penstock.service.logic import client

    return client.merge_states(list(states))


def register_scheme(name: str, serve: Callable[[str], Any]) -> None:
    """Registers a kind of service, for `distribute` with a service `name://rest`.

    Args:
        name: The scheme.
        serve: Called with the rest when an iterator opens; returns an object with a `session`
            (see `penstock.service.host.services`) and `close()`.

    >>> import penstock
    >>> from penstock.service.host.services import RunningService, session
    >>> addresses = {}
    >>> register_scheme("named", lambda name: RunningService(session(addresses[name])))
    >>> service = penstock.data.experimental.service
    >>> with service.DispatchServer() as dispatcher:
    ...     address = addresses["cluster"] = dispatcher.target.removeprefix("grpc://")
    ...     with service.WorkerServer(service.WorkerConfig(dispatcher_address=address)):
    ...         print(*Dataset.range(3).apply(distribute("distributed_epoch", "named://cluster")))
    0 1 2
    """
    from penstock.service.host import services

    services.register_scheme(name, serve)


def _check_compression(where: str, value: Any) -> None:
    if value not in _COMPRESSIONS:
        raise InvalidArgumentError(
            f'{where}: compression must be "AUTO", "SNAPPY" or None, got {check.describe(value)}'
        )


def _parse_dataset_id(where: str, value: Any) -> str:
    if not isinstance(value, str | bytes):
        raise UnfitTypeError(
            f"{where}: dataset_id must be what register_dataset returned, "
            f"got {check.describe(value)}"
        )
    return check.text(where, "dataset_id", value)


def _parse_url(where: str, service: Any) -> str:
    """A service as one string with its scheme, which must be registered."""
    from penstock.service.host.services import parse

    if isinstance(service, list):
        raise UnfitTypeError(
            f'{where}: service must be a string as in "grpc://host:port", '
            f"got {check.describe(service)}"
        )
    if isinstance(service, tuple):
        service = "://".join(check.text(where, "service", part) for part in service)
    return "://".join(parse(service, where))


def _dispatcher_url(where: str, service: Any) -> str:
    """The URL of a service, which must outlive iterators."""
    from penstock.service.host.services import outlives_readers

    url = _parse_url(where, service)
    if not outlives_readers(url):
        raise InvalidArgumentError(
            f"{where}: {url} runs only as long as an iterator, and keeps nothing; "
            "start a dispatcher, and give its address"
        )
    return url


def _register(url: str, plan: nodes.Node, spec: Any) -> str | None:
    """Registers the dataset and returns its id; None if an iterator must do that.

    No dispatcher may run before, or the dataset may have arrays that an iterator shares.
    """
    from penstock.service.host import services

    if not url.startswith("grpc://") or services.find_session(url).has_shared_arrays(plan):
        return None
    return services.register(url, plan, spec)


def _look_up(where: str, url: str, name: str, wanted: Any) -> tuple[Any, int]:
    """Spec and cardinality of a registered dataset, if options of its readers do not change it."""
    from penstock.service.host import services

    try:
        info = services.find_session(url).dataset(name)
    except NotFoundError as error:
        if wanted is not None:
            raise
        raise InvalidArgumentError(
            f"{where}: the spec of dataset {name!r} is not known, as {error.message}"
        ) from None
    found, count = decode_spec(info.spec), info.cardinality
    if info.shape.kind != Form.RANDOM and count != nodes.INFINITE:
        count = nodes.UNKNOWN
    if wanted is None:
        return found, count
    check.signature(where, wanted, "element_spec")
    common = None
    with contextlib.suppress(OpError):  # Their structures or dtypes differ.
        common = relax(wanted, found)
    if common != wanted:
        kind = FailedPreconditionError if common is None else InvalidArgumentError
        raise kind(
            f"{where}: dataset {name!r} has elements of {found}, which are not all of {wanted}; "
            "leave element_spec out to read them as registered"
        )
    return wanted, count


# The options of a reader: single arguments are checked by the call, all together when it is applied


class ReadOptions:
    """The arguments that `distribute` and `from_dataset_id` share.

    `where` is the public call, and `given` has its arguments by name.
    """

    def __init__(self, where: str, **given: Any) -> None:
        self._where, self._given = where, given
        mode, job_name = _parse_mode(where, given["processing_mode"]), given["job_name"]
        _check_job_name(where, job_name)
        index, count = _parse_consumers(
            where, job_name, given["consumer_index"], given["num_consumers"]
        )
        self._fields = {
            "mode": mode,
            "job_name": job_name,
            "consumer_index": index,
            "num_consumers": count,
        }

    def fields(self) -> dict[str, Any]:
        """The fields of the node `Distribute`."""
        where, given = self._where, self._given
        job_name, count = self._fields["job_name"], self._fields["num_consumers"]
        trainer = _parse_trainer(where, given["cross_trainer_cache"])
        if trainer is not None and (job_name is None or count is not None):
            raise InvalidArgumentError(
                f"{where}: cross_trainer_cache needs a job_name, and no num_consumers, got "
                f"{job_name!r} and {count}; trainers meet in a job, and each gets all of it"
            )
        target = _parse_target(where, given["target_workers"])
        if target == "LOCAL" and count is not None:
            raise InvalidArgumentError(
                f'{where}: target_workers="LOCAL" reads from workers of this host only, and '
                f"consumers of a coordinated read (num_consumers={count}) need the same workers; "
                "leave one of both out"
            )
        return self._fields | {
            "max_outstanding": _parse_outstanding(where, given["max_outstanding_requests"]),
            "transfer": _parse_transfer(where, given["data_transfer_protocol"]),
            "trainer": trainer,
            "target": target,
        }


def _parse_mode(where: str, value: Any) -> ShardingPolicy:
    if isinstance(value, ShardingPolicy):
        return value
    if isinstance(value, str) and value in _MODES:
        return _MODES[value]
    raise InvalidArgumentError(
        f'{where}: processing_mode must be "parallel_epochs", "distributed_epoch" or a '
        f"ShardingPolicy, got {check.describe(value)}"
    )


def _check_job_name(where: str, value: Any) -> None:
    if value is not None and not isinstance(value, str):
        raise UnfitTypeError(f"{where}: job_name must be a string, got {check.describe(value)}")
    if value == "":
        raise InvalidArgumentError(
            f"{where}: job_name must not be empty; leave it out for a job with one reader"
        )


def _parse_consumers(
    where: str, job_name: str | None, index: Any, count: Any
) -> tuple[int | None, int | None]:
    """The index of this consumer and their number; both None without coordination."""
    if index is None and count is None:
        return None, None
    if index is None or count is None:
        raise InvalidArgumentError(
            f"{where}: consumer_index and num_consumers go together, got {index} and {count}; "
            "give both for coordinated reads, or none"
        )
    if job_name is None:
        raise InvalidArgumentError(
            f"{where}: coordinated reads need a job_name, got None; consumers meet in a job"
        )
    number = check.integer(where, "consumer_index", index)
    total = check.integer(where, "num_consumers", count)
    if total < 1:
        raise FailedPreconditionError(f"{where}: num_consumers must be at least 1, got {total}")
    if not 0 <= number < total:
        raise FailedPreconditionError(
            f"{where}: consumer_index must be from 0 to {total - 1} for {total} consumers, "
            f"got {number}"
        )
    return number, total


def _parse_outstanding(where: str, value: Any) -> int | None:
    if value is None:
        return None
    number = check.integer(where, "max_outstanding_requests", value)
    if number < 1 and number != check.AUTOTUNE:
        raise InvalidArgumentError(
            f"{where}: max_outstanding_requests must be at least 1, or -1 for the default, "
            f"got {number}"
        )
    return None if number == check.AUTOTUNE else number


def _parse_trainer(where: str, value: Any) -> str | None:
    if value is None:
        return None
    if not isinstance(value, CrossTrainerCache):
        raise NotAConfigError(
            f"{where}: cross_trainer_cache must be a CrossTrainerCache, got {check.describe(value)}"
        )
    return str(value.trainer_id)


def _parse_target(where: str, value: Any) -> str:
    name = "AUTO" if value in (None, "") else check.text(where, "target_workers", value).upper()
    if name not in _TARGETS:
        raise InvalidArgumentError(
            f'{where}: target_workers must be "AUTO", "ANY" or "LOCAL", got {value!r}'
        )
    return name


def _parse_transfer(where: str, value: Any) -> str | None:
    """The transfer protocol; TensorFlow's "grpc" means the default, as None does."""
    if value is not None:
        check.text(where, "data_transfer_protocol", value)
    if value not in (None, "grpc", "tcp", "shm"):
        raise InvalidArgumentError(
            f'{where}: data_transfer_protocol must be "tcp", "shm" or None, '
            f"got {check.describe(value)}"
        )
    return value if value in ("tcp", "shm") else None
