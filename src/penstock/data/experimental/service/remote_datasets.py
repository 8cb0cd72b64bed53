"""Reading from a data service: datasets are registered there, and their elements come from there.

Arguments that are wrong in themselves are refused by the call that gets them; what the service
has to say comes when a dataset is applied, and all about a job when somebody iterates.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from penstock.data import arguments as check
from penstock.data.dataset import Dataset
from penstock.data.experimental.service.read_options import Asked, CrossTrainerCache
from penstock.element.spec import relax
from penstock.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    OpError,
    UnfitTypeError,
)
from penstock.plan import nodes
from penstock.plan.options import ShardingPolicy

Transformation = Callable[[Dataset], Dataset]

_COMPRESSIONS = ("AUTO", None, "SNAPPY")


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
    """Has a data service make the elements of the dataset it is applied to; the rest stays here.

    Args:
        processing_mode: "distributed_epoch" or `ShardingPolicy.DYNAMIC`: the workers share the
            dataset, and every element comes once. "parallel_epochs" or OFF: every worker makes all
            of it. The other policies divide it beforehand, among the workers that the dispatcher
            was told of.
        service: "grpc://host:port" for a dispatcher, or "local://4" for four processes on this
            machine that live as long as the iterator.
        job_name: Datasets that name the same job share its elements, first come, first served.
        consumer_index: For coordinated reads: which of the consumers this is.
        num_consumers: For coordinated reads: how many there are. In each step they get elements
            of one round, which are neighbours in the dataset.
        max_outstanding_requests: How many elements may be asked for at once; by default, as many
            as keep everybody busy.
        data_transfer_protocol: "shm" or "tcp"; by default the former where it is possible.
        compression: "AUTO" (where it pays), None or "SNAPPY".
        cross_trainer_cache: Several trainers get the same elements, each all of them.
        target_workers: "AUTO", "ANY" or "LOCAL", which reads only from workers on this host.

    >>> import penstock
    >>> numbers = penstock.data.Dataset.range(4).map(lambda x: x + 1)
    >>> print(*numbers.apply(distribute("distributed_epoch", "local://1")))
    1 2 3 4
    """
    where = "service.distribute"
    asked = Asked(
        where,
        processing_mode,
        job_name,
        consumer_index,
        num_consumers,
        max_outstanding_requests,
        data_transfer_protocol,
        cross_trainer_cache,
        target_workers,
    )
    _check_compression(where, compression)

    def apply(dataset: Dataset) -> Dataset:
        plan = check.plan_of(where, "dataset", dataset)
        url, fields = _url(where, service), asked.fields()
        name = _registered(url, plan, dataset.element_spec)
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
    """Tells a service of a dataset, which others then read with `from_dataset_id`.

    Args:
        service: "grpc://host:port".
        dataset: The dataset.
        compression: "AUTO", None or "SNAPPY"; each reader chooses its own in the end.
        dataset_id: What to call it; by default the service numbers its datasets.

    Returns:
        The id of the dataset, as bytes.
    """
    from penstock.service.host import connect

    where = "service.register_dataset"
    _check_compression(where, compression)
    name = None if dataset_id is None else check.text(where, "dataset_id", dataset_id) or None
    plan = check.plan_of(where, "dataset", dataset)
    url = _standing(where, service)
    return connect.register(url, plan, dataset.element_spec, name, lasting=True).encode()


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
    """The elements of a dataset that somebody registered with `register_dataset`.

    Args:
        processing_mode: As for `distribute`, like all arguments that are not told of here.
        service: "grpc://host:port".
        dataset_id: The id that `register_dataset` returned.
        element_spec: What an element must look like; by default as it was registered.
        job_name: As for `distribute`.
        consumer_index: As for `distribute`.
        num_consumers: As for `distribute`.
        max_outstanding_requests: As for `distribute`.
        data_transfer_protocol: As for `distribute`.
        cross_trainer_cache: As for `distribute`.
        target_workers: As for `distribute`.
    """
    where = "service.from_dataset_id"
    asked = Asked(
        where,
        processing_mode,
        job_name,
        consumer_index,
        num_consumers,
        max_outstanding_requests,
        data_transfer_protocol,
        cross_trainer_cache,
        target_workers,
    )
    url, fields, name = _standing(where, service), asked.fields(), _dataset_id(where, dataset_id)
    spec, count = _known(where, url, name, element_spec)
    return Dataset(
        nodes.Distribute(
            None, url, compression="AUTO", dataset_id=name, element=spec, known=count, **fields
        )
    )


def status(service: str | tuple[str, str]) -> dict[str, Any]:
    """What goes on in a service, as plain data: its jobs, workers, streams, leases and rates.

    Args:
        service: "grpc://host:port".
    """
    from penstock.service.host import connect

    return connect.status(_standing("service.status", service))


def merge_states(states: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """One state of what several readers of a named job had read, for any number of new readers.

    Args:
        states: What `state_dict` of each reader's iterator returned.
    """
    from penstock.service.host import connect

    return connect.merge_states(list(states))


def register_scheme(name: str, serve: Callable[[str], Any]) -> None:
    """Makes `name://rest` a service that `distribute` knows.

    Args:
        name: The scheme.
        serve: Called with the rest when somebody begins to read; gives an object with a `session`
            (see `penstock.service.host.session`) and `close()`.
    """
    from penstock.service.host import connect

    connect.register_scheme(name, serve)


def _check_compression(where: str, value: Any) -> None:
    if value not in _COMPRESSIONS:
        raise InvalidArgumentError(
            f'{where}: compression must be "AUTO", "SNAPPY" or None, got {check.typed(value)}'
        )


def _dataset_id(where: str, value: Any) -> str:
    if not isinstance(value, str | bytes):
        raise UnfitTypeError(
            f"{where}: dataset_id must be what register_dataset returned, got {check.typed(value)}"
        )
    return check.text(where, "dataset_id", value)


def _url(where: str, service: Any) -> str:
    """A service as one string with its scheme, which must be known."""
    from penstock.service.host.services import parse

    if isinstance(service, tuple):
        service = "://".join(check.text(where, "service", part) for part in service)
    return "://".join(parse(service, where))


def _standing(where: str, service: Any) -> str:
    """A service that is there before somebody reads, and stays."""
    url = _url(where, service)
    if not url.startswith("grpc://"):
        raise InvalidArgumentError(
            f"{where}: {url} lives only as long as an iterator, and keeps nothing; "
            "start a dispatcher, and give its address"
        )
    return url


def _registered(url: str, plan: nodes.Node, spec: Any) -> str | None:
    """The id that a dispatcher gives the dataset; None where none runs before somebody reads."""
    from penstock.service.host import connect

    return connect.register(url, plan, spec) if url.startswith("grpc://") else None


def _known(where: str, url: str, name: str, wanted: Any) -> tuple[Any, int]:
    """Spec and cardinality of a registered dataset."""
    from penstock.service.host import connect

    try:
        info = connect.dataset_info(url, name)
    except NotFoundError as error:
        if wanted is not None:
            raise
        raise InvalidArgumentError(
            f"{where}: what dataset {name!r} holds is not known, as {error.message}"
        ) from None
    found = connect.spec_of_dataset(info)
    if wanted is None:
        return found, info.cardinality
    if not _covers(check.signature(where, wanted, "element_spec"), found):
        raise FailedPreconditionError(
            f"{where}: dataset {name!r} has elements of {found}, which are not all of {wanted}; "
            "leave element_spec out to take them as they are"
        )
    return wanted, info.cardinality


def _covers(wanted: Any, found: Any) -> bool:
    """Whether all that fits one spec fits the other as well."""
    try:
        return bool(relax(wanted, found) == wanted)
    except OpError:
        return False
