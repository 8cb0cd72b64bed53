"""Sequences of similar length in one batch: what `bucket_by_sequence_length` groups by.

Bucket i holds the lengths from `boundaries[i - 1]` up to and without `boundaries[i]`.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from penstock.data.arguments import integer
from penstock.element import nest
from penstock.element.spec import Dims, TensorShape
from penstock.errors import InternalError, InvalidArgumentError

WHERE = "Dataset.bucket_by_sequence_length"


@dataclass(frozen=True)
class Buckets:
    """The limits of the buckets and the batch size of each."""

    boundaries: tuple[int, ...]
    sizes: tuple[int, ...]

    __leaf__ = True

    @classmethod
    def checked(cls, boundaries: Any, sizes: Any) -> Buckets:
        limits = tuple(integer(WHERE, "bucket_boundaries", one) for one in boundaries)
        counts = tuple(integer(WHERE, "bucket_batch_sizes", one) for one in sizes)
        if any(one >= following for one, following in pairwise(limits)):
            raise InvalidArgumentError(
                f"{WHERE}: bucket_boundaries must rise, got {list(limits)}; sort them, each once"
            )
        if len(counts) != len(limits) + 1:
            raise InvalidArgumentError(
                f"{WHERE}: bucket_batch_sizes must be one more than bucket_boundaries "
                f"({len(limits)}), got {len(counts)}"
            )
        return cls(limits, counts)

    def number(self, length: Any) -> int:
        """The bucket of a length."""
        return bisect_right(self.boundaries, int(length))

    def size_of(self, bucket: Any) -> int:
        return self.sizes[int(bucket)]

    def longest(self, bucket: Any) -> int:
        """The greatest length in a bucket; the last one has none."""
        if bucket >= len(self.boundaries):
            raise InternalError(
                f"{WHERE}: with pad_to_bucket_boundary, lengths must be below the last of "
                f"bucket_boundaries, {self.boundaries[-1] if self.boundaries else 'none given'}"
            )
        return self.boundaries[int(bucket)] - 1


def filled(shapes: Any, spec: Any, told: bool, length: int) -> Any:
    """`shapes` (those of `spec` if None) with `length` for every unknown dimension.

    Where `spec` was not told but found on samples, a dimension may be known by chance: it is left
    to the batch, and where no other is unknown, the leading one is taken for the sequence's.
    """
    leaves, tree = nest.flatten(spec)
    if shapes is not None:
        given = [TensorShape(shape).dims for shape in nest.flatten_up_to(tree, shapes)]
    else:
        given = [leaf.shape.dims for leaf in leaves]
        if not told and not any(None in (dims or ()) for dims in given):
            given = [dims and (None, *dims[1:]) for dims in given]
    loose = shapes is None and not told
    return nest.unflatten(tree, [TensorShape(_filled(dims, length, loose)) for dims in given])


def _filled(dims: Dims | None, length: int, loose: bool) -> Dims | None:
    return dims and tuple(length if d is None else None if loose else d for d in dims)
