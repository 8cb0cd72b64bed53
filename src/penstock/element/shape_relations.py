"""What a shape says of another one: whether it is more specific, and what both have in common.

`TensorShape` inherits these methods; their names are TensorFlow's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from penstock.errors import InvalidArgumentError


class ShapeRelations:
    """Methods of a shape that compare it with another one, or with a rank.

    >>> from penstock import TensorShape
    >>> TensorShape([None, 2]).merge_with([3, None]), TensorShape(None).with_rank(2)
    (TensorShape([3, 2]), TensorShape([None, None]))
    """

    __slots__ = ()

    dims: tuple[int | None, ...] | None
    rank: Any
    known: Any
    relax: Callable[[Any], Any]
    is_compatible_with: Callable[[Any], bool]

    def _shape(self, dims: Any) -> Any:
        """A shape, or its dimensions, as a shape of this class."""
        kind: Any = type(self)
        return kind(dims)

    def is_subtype_of(self, other: Any) -> bool:
        """Whether every value of this shape has the other one, too.

        >>> from penstock import TensorShape
        >>> TensorShape([3]).is_subtype_of(TensorShape([None]))
        True
        """
        return isinstance(other, ShapeRelations) and other.relax(self) == other

    def most_specific_compatible_shape(self, other: Any) -> Any:
        """The most specific shape that the values of both have.

        >>> from penstock import TensorShape
        >>> TensorShape([3, 2]).most_specific_compatible_shape([4, 2])
        TensorShape([None, 2])
        """
        return self.relax(self._shape(other))

    def most_specific_common_supertype(self, others: Iterable[Any]) -> Any:
        """The most specific shape that the values of all have; None if one is no shape.

        >>> from penstock import TensorShape
        >>> TensorShape([3]).most_specific_common_supertype([TensorShape([4])])
        TensorShape([None])
        """
        found: Any = self
        for other in others:
            if not isinstance(other, ShapeRelations):
                return None
            found = found.relax(other)
        return found

    def merge_with(self, other: Any) -> Any:
        """What is known of a value that has both shapes.

        >>> from penstock import TensorShape
        >>> TensorShape([None, 2]).merge_with([3, None])
        TensorShape([3, 2])
        """
        more = self._shape(other)
        if self.dims is None or more.dims is None:
            return self if more.dims is None else more
        self.assert_is_compatible_with(more)
        pairs = zip(self.dims, more.dims, strict=True)
        return self._shape([b if a is None else a for a, b in pairs])

    def with_rank(self, rank: int | None) -> Any:
        """This shape, which must have or may have the rank.

        >>> from penstock import TensorShape
        >>> TensorShape(None).with_rank(2)
        TensorShape([None, None])
        """
        if rank is None:
            return self
        if self.dims is None:
            return self._shape([None] * rank)
        self.assert_has_rank(rank)
        return self

    def with_rank_at_least(self, rank: int) -> Any:
        """This shape; raises if its rank is less.

        >>> from penstock import TensorShape
        >>> TensorShape([3]).with_rank_at_least(1)
        TensorShape([3])
        """
        if self.rank is not None and self.rank < rank:
            raise InvalidArgumentError(f"TensorShape: {self} must have a rank of at least {rank}")
        return self

    def with_rank_at_most(self, rank: int) -> Any:
        """This shape; raises if its rank is greater.

        >>> from penstock import TensorShape
        >>> TensorShape([3]).with_rank_at_most(1)
        TensorShape([3])
        """
        if self.rank is not None and self.rank > rank:
            raise InvalidArgumentError(f"TensorShape: {self} must have a rank of at most {rank}")
        return self

    def assert_has_rank(self, rank: int | None) -> None:
        """Raises if the rank is another one.

        >>> from penstock import TensorShape
        >>> TensorShape([3]).assert_has_rank(1)
        """
        if None not in (self.rank, rank) and self.rank != rank:
            raise InvalidArgumentError(f"TensorShape: {self} must have rank {rank}")

    def assert_same_rank(self, other: Any) -> None:
        """Raises if the ranks are known and differ.

        >>> from penstock import TensorShape
        >>> TensorShape([3]).assert_same_rank([None])
        """
        more = self._shape(other)
        if None not in (self.rank, more.rank) and self.rank != more.rank:
            raise InvalidArgumentError(f"TensorShape: {self} and {more} must have the same rank")

    def assert_is_compatible_with(self, other: Any) -> None:
        """Raises if no value can have both shapes.

        >>> from penstock import TensorShape
        >>> TensorShape([3]).assert_is_compatible_with([None])
        """
        if not self.is_compatible_with(other):
            raise InvalidArgumentError(
                f"TensorShape: {self} and {self._shape(other)} are not compatible"
            )

    def assert_is_fully_defined(self) -> None:
        """Raises if a dimension is unknown.

        >>> from penstock import TensorShape
        >>> TensorShape([3]).assert_is_fully_defined()
        """
        if not self.known:
            raise InvalidArgumentError(f"TensorShape: {self} is not fully defined")
