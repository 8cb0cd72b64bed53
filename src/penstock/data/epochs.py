"""Epochs of shuffled datasets: a warning where every epoch has the order of the first one.

Each dataset counts its own epochs. In `for batch in shuffled.batch(32)` inside a loop over epochs,
each round makes a new dataset, and its first epoch has the order that the round before had.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterator

from penstock.engine.tracebacks import users_level
from penstock.plan.nodes import Cache, Node, Shuffle, Snapshot
from penstock.plan.show import title

_PASSES = "_passes"
"""Where a `Shuffle` counts the first epochs of plans over it that were read to their end."""


def note_first_pass(plan: Node, reader: type) -> None:
    """Notes that a reader got all elements of a plan, in the order of its first epoch."""
    for shuffle in _reshuffles(plan):
        _passes_of(shuffle)[_text(plan, reader)] += 1


def warn_of_same_order(plan: Node, reader: type) -> None:
    """Warns before the first epoch of a dataset, if an equal one had the same order before.

    Both were made of one shuffled dataset. It warns at the second pass only, not at later ones.
    """
    noted = [passes for shuffle in _reshuffles(plan) if (passes := _passes_of(shuffle))]
    if not noted:
        return
    text = _text(plan, reader)
    if not any(passes[text] == 1 for passes in noted):
        return
    warnings.warn(
        "Dataset.shuffle: this epoch has the same order as the one before, because a new dataset "
        f"was made of the shuffled one for it ({plan.label}), and every dataset counts its own "
        "epochs; make the dataset once, before the loop over the epochs, and iterate over it in "
        "each of them; if the order is meant to be the same, pass reshuffle_each_iteration=False",
        stacklevel=users_level(),
    )


def _reshuffles(plan: Node) -> Iterator[Shuffle]:
    """The shuffles in a plan that draw another order in each epoch."""
    if isinstance(plan, Shuffle) and plan.reshuffle:
        yield plan
    if not plan.sealed and not isinstance(plan, Cache | Snapshot):
        for part in plan.inputs:
            yield from _reshuffles(part)


def _passes_of(shuffle: Shuffle) -> Counter[str]:
    found: Counter[str] = shuffle.__dict__.setdefault(_PASSES, Counter())
    return found


def _text(plan: Node, reader: type) -> str:
    """Equal for plans with the same operators and functions, and the same kind of reader."""
    return "\n".join([reader.__name__, *_titles(plan)])


def _titles(plan: Node) -> Iterator[str]:
    yield title(plan)
    for part in plan.inputs:
        yield from _titles(part)
