"""`Datasets`: an array of datasets, which is what `batch` makes of windows.

It is a leaf like any array: `unbatch` gives its rows back, and it may have several dimensions.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from penstock.element.spec import TypeSpec, relax_all
from penstock.errors import InvalidArgumentError


class Datasets:
    """Datasets of one element spec, or rows of them, one after the other."""

    __slots__ = ("_rows", "shape")

    def __init__(self, rows: list[Any]) -> None:
        shapes = {getattr(row, "shape", ()) for row in rows}
        if len(shapes) > 1:
            raise InvalidArgumentError(
                f"penstock: datasets cannot be stacked: their shapes are {sorted(shapes)}"
            )
        self._rows = rows
        self.shape: tuple[int, ...] = (len(rows), *shapes.pop())

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._rows)

    def __getitem__(self, index: Any) -> Any:
        return Datasets(self._rows[index]) if isinstance(index, slice) else self._rows[index]

    def __leaf_spec__(self) -> TypeSpec:
        made: TypeSpec = relax_all(row.__leaf_spec__() for row in self._rows).batch(len(self))
        return made

    def __repr__(self) -> str:
        return f"<Datasets {list(self.shape)}>"


def is_dataset(leaf: Any) -> bool:
    """Whether a leaf is a dataset, or an array of datasets."""
    return hasattr(type(leaf), "__plan__") or isinstance(leaf, Datasets)
