"""`Chunk`: n consecutive elements, as columns.

Operators, threads, processes and hosts exchange chunks, so that the cost of a step is paid once per
chunk, not once per element. A chunk never changes after it is made; slices of it are views.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from penstock.element import columns, nest, strings
from penstock.element.columns import Array, Column
from penstock.element.dtypes import is_number
from penstock.element.nest import Tree
from penstock.element.spec import TypeSpec, relax_all
from penstock.element.strings import bytes_of
from penstock.element.values import BareText, as_value, narrow, spec_of_leaf
from penstock.errors import InvalidArgumentError, OpError

_TUPLE = type(())


class Chunk:
    """Elements of one structure; `columns[i]` contains leaf i of each.

    `numbers` identify the elements for operators that draw random numbers: see `Context.numbered`.

    >>> chunk = Chunk.of([(np.int64(1), b"a"), (np.int64(2), b"b")])
    >>> len(chunk), chunk.columns[0], chunk.elements()[1]
    (2, array([1, 2]), (np.int64(2), b'b'))
    """

    __slots__ = ("_nbytes", "columns", "numbers", "size", "tree")

    def __init__(
        self, tree: Tree, columns: list[Column], size: int, numbers: Array | None = None
    ) -> None:
        self.tree = tree
        self.columns = columns
        self.size = size
        self.numbers = numbers
        self._nbytes = -1

    def __len__(self) -> int:
        return self.size

    @classmethod
    def of(cls, elements: Sequence[Any], where: str = "Dataset", first: int = 0) -> Chunk:
        """Converts elements to a chunk. Errors name `where` and count elements from `first`."""
        built = _build(elements)
        if built is not None:
            return cls(*built, len(elements))
        flat = [nest.flatten(element) for element in elements]
        tree = flat[0][1]
        if any(other != tree for _, other in flat):
            raise _structure_error(elements, where, first)
        leaves = [_values(row, where, first + i, elements[i]) for i, (row, _) in enumerate(flat)]
        cols = [list(col) for col in zip(*leaves, strict=True)]
        if any(len({leaf_kind(leaf) for leaf in col}) > 1 for col in cols):
            raise _structure_error(elements, where, first)
        return cls(tree, [columns.make(col) for col in cols], len(elements))

    @classmethod
    def join(cls, chunks: Sequence[Chunk]) -> Chunk:
        """The elements of all chunks, in order."""
        return chunks[0] if len(chunks) == 1 else cls._combine(chunks, columns.join)

    @classmethod
    def weave(cls, chunks: Sequence[Chunk], block: int) -> Chunk:
        """A block of elements of each chunk in turn; all chunks have the same number of blocks."""
        return cls._combine(chunks, lambda parts: columns.weave(parts, block))

    @classmethod
    def _combine(
        cls, chunks: Sequence[Chunk], combine: Callable[[Sequence[Column]], Column]
    ) -> Chunk:
        parts = zip(*(chunk.columns for chunk in chunks), strict=True)
        numbers = [chunk.numbers for chunk in chunks if chunk.numbers is not None]
        all_numbers: Any = combine(numbers) if len(numbers) == len(chunks) else None
        size = sum(chunk.size for chunk in chunks)
        return cls(chunks[0].tree, [combine(part) for part in parts], size, all_numbers)

    def with_numbers(self, numbers: Array | None) -> Chunk:
        """The same elements, with these numbers."""
        return Chunk(self.tree, self.columns, self.size, numbers)

    def rows(self, start: int, stop: int) -> Chunk:
        """The elements from `start` to `stop`, sharing memory."""
        if start == 0 and stop >= self.size:
            return self
        stop = min(stop, self.size)
        numbers = None if self.numbers is None else self.numbers[start:stop]
        columns = [column[start:stop] for column in self.columns]
        return Chunk(self.tree, columns, stop - start, numbers)

    def take(self, indices: Array) -> Chunk:
        """The elements at `indices`, copied."""
        picked = [columns.take(column, indices) for column in self.columns]
        numbers = None if self.numbers is None else self.numbers[indices]
        return Chunk(self.tree, picked, len(indices), numbers)

    def again(self, count: int) -> Chunk:
        """The only element of the chunk, `count` times."""
        made = [columns.again(column, count) for column in self.columns]
        return Chunk(self.tree, made, count)

    def as_read_only(self) -> Chunk:
        """The same elements, with read-only arrays."""
        return Chunk(
            self.tree, [columns.as_read_only(column) for column in self.columns], self.size
        )

    def elements(self) -> list[Any]:
        """The elements as structures of leaves, as users get them."""
        cols = self.columns
        if self.tree.is_leaf():
            return list(cols[0])
        if self.tree.type is _TUPLE and self.tree.num_nodes == len(cols) + 1 and cols:
            return list(zip(*cols, strict=True))
        if not cols:
            return [nest.unflatten(self.tree, ()) for _ in range(self.size)]
        return [nest.unflatten(self.tree, row) for row in zip(*cols, strict=True)]

    @property
    def kind(self) -> tuple[Tree, list[Any]]:
        """The structure and the dtypes, which are the same for all chunks of a stream."""
        return self.tree, [columns.kind(column) for column in self.columns]

    @property
    def nbytes(self) -> int:
        if self._nbytes < 0:
            self._nbytes = sum(map(columns.nbytes, self.columns))
        return self._nbytes


def _values(row: list[Any], where: str, ordinal: int, element: Any) -> list[Any]:
    try:
        return [as_value(leaf) for leaf in row]
    except OpError as error:
        raise unusable_element(where, element, ordinal, error) from None


def _build(values: Sequence[Any]) -> tuple[Tree, list[Column]] | None:
    """Structure and columns of values of one type, faster than flattening each.

    None if types differ or if a leaf must be converted: then each value must be flattened.
    """
    kind = type(values[0])
    if set(map(type, values)) != {kind}:
        return None
    if kind is tuple:
        return _build_parts(nest.tuple_of(len(values[0])), list(map(len, values)), values)
    if kind is np.ndarray:
        dtype = values[0].dtype
        good = is_number(dtype) and all(v.dtype == dtype and v.ndim for v in values)
        return (nest.LEAF, [columns.make_alike(list(values))]) if good else None
    if kind is dict:
        return _build_dict(values)
    if kind in _DTYPES:
        return _build_numbers(values, kind)
    if kind is list:
        kinds = set(map(type, itertools.chain.from_iterable(values)))
        is_even = len(kinds) == 1 and len(set(map(len, values))) == 1
        return _build_numbers(values, *kinds) if is_even and kinds <= _DTYPES.keys() else None
    if kind is str:
        return nest.LEAF, [strings.make_column(list(map(bytes_of, values)))]
    if kind is bytes or (issubclass(kind, np.generic) and is_number(values[0].dtype)):
        return nest.LEAF, [columns.make_alike(list(values))]
    return None


_DTYPES = {bool: np.bool_, int: np.int32, float: np.float32}


def _build_numbers(values: Sequence[Any], kind: type) -> tuple[Tree, list[Column]] | None:
    column = narrow(np.array(values))
    # If an int does not fit into int32, the elements do not have one dtype.
    return (nest.LEAF, [column]) if column.dtype == _DTYPES[kind] else None


def _build_dict(values: Sequence[Any]) -> tuple[Tree, list[Column]] | None:
    keys, tree = nest.keys_of(tuple(values[0]))
    if any(value.keys() != values[0].keys() for value in values):
        return None
    rows = [[value[key] for key in keys] for value in values]
    return _build_parts(tree, [len(keys)], rows)


def _build_parts(
    tree: Tree, lengths: list[int], values: Sequence[Any]
) -> tuple[Tree, list[Column]] | None:
    if not lengths[0] or set(lengths) != {lengths[0]}:
        return None
    parts = [_build(part) for part in zip(*values, strict=True)]
    if any(part is None for part in parts):
        return None
    trees, made = zip(*parts, strict=True)
    return nest.graft(tree, trees), [column for part in made for column in part]


def leaf_kind(leaf: Any) -> Any:
    """The type or dtype of a leaf, which must be the same for all elements."""
    if type(leaf) is np.ndarray or isinstance(leaf, np.generic):
        return leaf.dtype
    return np.dtype(object) if isinstance(leaf, bytes) else type(leaf)


def pick_different(leaves: Iterable[Any]) -> list[Any]:
    """One leaf of every kind and shape: leaves of one kind and shape have the same spec."""
    return list({_kind_and_shape(leaf): leaf for leaf in leaves}.values())


def _kind_and_shape(leaf: Any) -> Any:
    if type(leaf) is np.ndarray or isinstance(leaf, np.generic):
        return leaf.dtype, leaf.shape
    return bytes if isinstance(leaf, bytes) else id(leaf)


def spec_of_leaves(leaves: Iterable[Any]) -> TypeSpec:
    """The most exact spec that fits all leaves."""
    found: TypeSpec = relax_all(map(spec_of_leaf, pick_different(leaves)))
    return found


def describe(element: Any) -> str:
    """The structure and dtypes of an element as text: `(int64, {'a': string})`."""
    leaves, tree = nest.flatten(element)
    return _structure_text([spec_of_leaf(as_value(leaf)) for leaf in leaves], tree)


def describe_spec(spec: Any) -> str:
    """The same text for all elements that `spec` describes."""
    return _structure_text(*nest.flatten(spec))


def _structure_text(specs: list[Any], tree: Tree) -> str:
    def name(leaf: Any) -> str:
        return leaf.dtype.name if hasattr(leaf, "dtype") else type(leaf).__name__[:-4].lower()

    return repr(nest.sort_keys(nest.unflatten(tree, [BareText(name(leaf)) for leaf in specs])))


def _structure_error(elements: Sequence[Any], where: str, first: int) -> Exception:
    texts = [describe(element) for element in elements]
    odd = next(i for i, text in enumerate(texts) if text != texts[0])
    return changed_structure(where, first, texts[0], first + odd, texts[odd])


def unusable_element(where: str, element: Any, ordinal: int, error: OpError) -> OpError:
    """The error for a value that cannot be an element, with the reason of `error`."""
    reason = error.message.removeprefix("penstock: ")
    return type(error)(f"{where} returned {element!r:.60} for element {ordinal}: {reason}")


def changed_structure(where: str, first: int, expected: str, ordinal: int, got: str) -> Exception:
    """The error for an element whose structure or dtypes differ from those of the first."""
    return InvalidArgumentError(
        f"{where} returned {expected} for element {first} but {got} for element {ordinal}; "
        f"every element must have the same structure and dtypes{_remedy(expected, got)}"
    )


_NUMBER = re.compile(r"\b(?:u?int|float)\d+\b")


def _remedy(expected: str, got: str) -> str:
    """If only dtypes of numbers differ, advice to convert to a dtype for both; else nothing."""
    if expected == got or _NUMBER.sub("", expected) != _NUMBER.sub("", got):
        return ""
    pairs = zip(_NUMBER.findall(expected), _NUMBER.findall(got), strict=True)
    pair = next(pair for pair in pairs if pair[0] != pair[1])
    floats = [name for name in pair if name.startswith("float")]
    wide = floats[0] if len(floats) == 1 else np.promote_types(*pair)
    return f": convert it yourself, e.g. numpy.{wide}(...)"
