"""Traits: what other modules may assume of an operator. Each node class declares its own.

A module that treats some operators in another way asks for a trait; it never keeps a list of them.
So a new operator answers all such questions in one place, in its class in `nodes.py`.
"""

from __future__ import annotations

from enum import Flag, auto


class Trait(Flag):
    """One assumption that holds for every instance of a node class."""

    NONE = 0
    """Nothing is assumed: the operator is never divided, moved or looked through."""

    ADVISORY = auto()
    """Without it, the plan has the same elements in the same order, and the same saved states."""

    ELEMENTWISE = auto()
    """It treats each element of its input as if that were the only one.

    So what it makes of the pieces of its input are the pieces of its output.
    """

    ONE_TO_ONE = auto()
    """Each element of its input becomes one element, and each failure one failure."""

    BY_POSITION = auto()
    """It moves elements by their positions and never reads them: row numbers can replace rows."""

    SAMPLED_BY_INPUT = auto()
    """An element of its first input is a valid sample of its own elements."""

    KEEPS_BATCH_SIZE = auto()
    """TensorFlow takes the batch size of its input for the batch size of its output."""

    SAME_ON_FILES = auto()
    """Run over each worker's shard of the files, it gives in total what it gives over all files."""

    COUNTS_ON_FILES = auto()
    """It can run over each worker's shard of the files, but gives other elements in total."""

    SHARD_PASSES = auto()
    """A shard of file names behind it may move before it: no name is lost or read twice."""

    READS_FILES = auto()
    """Its elements are records of files."""

    MAKES_DATASETS = auto()
    """Its function returns datasets, which may draw their own order."""

    DRAWS_ORDER = auto()
    """Its seed decides which elements come in which order, not what they contain."""
