"""`PerReplicaSpec`: what stands on each replica, before anything does."""

from __future__ import annotations

from typing import Any

from penstock.distribute.values.per_replica import DistributedValues
from penstock.element.spec import TensorSpec, TypeSpec


class PerReplicaSpec(TypeSpec):
    """The specs of the values of one `PerReplica`.

    >>> PerReplicaSpec(TensorSpec([None]), TensorSpec([None])).specs[0]
    TensorSpec(shape=(None,), dtype=tf.float32, name=None)
    """

    __slots__ = ("specs",)

    def __init__(self, *specs: TypeSpec) -> None:
        self.specs = specs

    def fits(self, value: Any) -> bool:
        if isinstance(value, PerReplicaSpec):
            return _all_fit(self.specs, value.specs)
        return isinstance(value, DistributedValues) and _all_fit(
            self.specs, tuple(map(_described, value.values))
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PerReplicaSpec) and self.specs == other.specs

    def __hash__(self) -> int:
        return hash(self.specs)

    def __repr__(self) -> str:
        comma = "," if len(self.specs) == 1 else ""
        return f"PerReplicaSpec({', '.join(map(repr, self.specs))}{comma})"


def _all_fit(specs: tuple[TypeSpec, ...], values: tuple[Any, ...]) -> bool:
    return len(specs) == len(values) and all(map(lambda s, v: s.fits(v), specs, values))


def _described(value: Any) -> Any:
    """A framework's tensor by its spec; what NumPy knows, as it is."""
    dtype = str(getattr(value, "dtype", ""))
    if not dtype.startswith("torch."):
        return value
    return TensorSpec(tuple(value.shape), dtype.removeprefix("torch."))
