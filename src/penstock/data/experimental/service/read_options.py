"""The options of a reader of a data service, for `distribute` and `from_dataset_id`.

`ReadOptions` checks single arguments when it is made, and all together in `fields`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from penstock.data import arguments as check
from penstock.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    NotAConfigError,
    UnfitTypeError,
)
from penstock.plan.options import ShardingPolicy

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


class ReadOptions:
    """The arguments that `distribute` and `from_dataset_id` share.

    `where` is the public call, and `given` has its arguments by name.
    """

    def __init__(self, where: str, given: Mapping[str, Any]) -> None:
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
