"""Checks of the argument of `load_state_dict`, before anything of the iterator changes.

A state comes from outside, so anything may be wrong with it. Each operator checks its own entry;
this module checks that every operator has one.
"""

from __future__ import annotations

import difflib
from typing import Any

from penstock.engine.contract import State
from penstock.engine.state_values import VALUE_KEY, decode, encode
from penstock.errors import InvalidArgumentError
from penstock.plan.nodes import Map, Node, walk_plan
from penstock.plan.resume import (
    chosen_seeds,
    local_structure,
    operators,
    structure,
    takes_positions,
)

VERSION = 1
_ENCODED = VERSION + 1
"""The version of a state with encoded values: a release that cannot decode them refuses it."""

_INSIDE = ("from", "input", "reader")
"""The keys under which the state of an operator holds another state."""


def with_plain_values(state: dict[str, Any]) -> dict[str, Any]:
    """The state of an iterator, with plain values in place of users' values."""
    at = encode(state["at"])
    return {**state, "version": _ENCODED if _is_encoded(at) else VERSION, "at": at}


def with_users_values(state: Any) -> Any:
    """The state that `with_plain_values` got. States of other forms stay as they are."""
    if not isinstance(state, dict) or state.get("version") != _ENCODED or "at" not in state:
        return state
    return {**state, "version": VERSION, "at": decode(state["at"])}


def _is_encoded(state: State) -> bool:
    if type(state) is dict:
        return VALUE_KEY in state or any(map(_is_encoded, state.values()))
    return type(state) is list and any(map(_is_encoded, state))


def check_state(
    state: Any, plan: Node, written: Node, call: str = "Iterator.load_state_dict"
) -> None:
    """InvalidArgumentError unless `state` can be one of `plan`, which was made of `written`."""
    try:
        _check(state, plan, chosen_seeds(written))
    except _WrongStateError as wrong:
        raise InvalidArgumentError(f"{call}: {wrong}") from None


def move_state(state: Any, plan: Node, written: Node) -> Any:
    """The state for this plan, if it was saved by the same plan with or without a service.

    The order is the same, so the number of elements says where to continue. Without random access,
    the elements before are computed again. Other states stay as they are.
    """
    if not isinstance(state, dict) or not _is_count(state.get("count")):
        return state
    if state.get("plan") == structure(plan):
        return state
    local = state.get("local", state.get("plan"))
    if local is None or local != local_structure(written):
        return state
    count = state["count"]
    skipped = {"from": None, "skip": count} if count else None
    at = count if takes_positions(plan) else skipped
    return {**state, "plan": structure(plan), "at": at}


class _WrongStateError(Exception):
    """Raised with the reason why a state is refused."""


def _check(state: Any, plan: Node, seeds: list[int | None]) -> None:
    if isinstance(state, str | bytes):
        raise _WrongStateError(
            f"a state is a dict, got text; pass json.loads(text) if it is JSON: {state!r:.80}"
        )
    if not isinstance(state, dict) or state.get("version") != VERSION:
        raise _WrongStateError(f"not a state that state_dict() of this version made: {state!r:.80}")
    missing = [name for name in ("plan", "iteration", "key", "seeds", "at") if name not in state]
    if missing:
        raise _WrongStateError(
            f"the state is not complete, {', '.join(map(repr, missing))} is missing"
        )
    if state["plan"] != structure(plan):
        if _is_other_service(state, plan):
            raise _WrongStateError(
                "the state does not move to or from a service, because the elements may come in "
                "another order: the pipeline has a mix, deterministic=False, a job that other "
                "readers share, or a shuffle behind distribute; load it where it was saved, with "
                "or without the service"
            )
        raise _WrongStateError(
            f"the state was saved by another pipeline: {_difference(state, plan)}; build the "
            "dataset as it was built when the state was saved (prefetch and num_parallel_calls "
            "may differ)"
        )
    _check_numbers(state, seeds)
    _check_place(state["at"], plan)


def _is_other_service(state: dict[str, Any], plan: Node) -> bool:
    """Whether the pipeline that saved the state differs only in what a service computes.

    The order of operators does not count, as rewriting moves some of them to the service.
    """
    old, new = state.get("operators"), operators(plan)
    if not isinstance(old, list) or sorted(map(str, old)) == sorted(new):
        return False
    return _without_service(old) == _without_service(new)


def _without_service(texts: list[Any]) -> list[str]:
    return sorted(text for text in map(str, texts) if not text.startswith("distribute("))


def _difference(state: dict[str, Any], plan: Node) -> str:
    """What became of the operators that saved a state, in words."""
    old, new = state.get("operators"), operators(plan)
    if not isinstance(old, list) or not all(isinstance(text, str) for text in old) or old == new:
        return f"{state['plan']!r:.60} became {structure(plan)!r}"
    changes = difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes()
    found = [
        f"{'.'.join(old[a:b]) or 'nothing'} became {'.'.join(new[c:d]) or 'nothing'}"
        for kind, a, b, c, d in changes
        if kind != "equal"
    ]
    return ", ".join(found)


def _check_numbers(state: dict[str, Any], seeds: list[int | None]) -> None:
    for name in ("iteration", "key"):
        if not _is_count(state[name]):
            raise _WrongStateError(f"{name!r} must be an int from 0 on, got {state[name]!r:.60}")
    found = state["seeds"]
    if not isinstance(found, list) or len(found) != len(seeds) or not all(map(_is_int, found)):
        raise _WrongStateError(f"'seeds' must be a list of {len(seeds)} ints, got {found!r:.60}")
    for saved, seed in zip(found, seeds, strict=True):
        if seed is not None and saved != seed:
            raise _WrongStateError(
                f"the state was saved with the seed {saved}, but this pipeline has {seed}; give it "
                "the seed of the state, or none"
            )


def _check_place(at: Any, plan: Node) -> None:
    if not _is_place(at):
        raise _WrongStateError(f"'at' is not what state_dict() makes, {at!r:.60}")
    if not isinstance(at, int):
        return
    if not _has_positions(plan) and not takes_positions(plan):
        raise _WrongStateError(f"'at' must hold what the operators saved, got the position {at}")
    if 0 <= plan.cardinality < at:
        raise _WrongStateError(
            f"'at' must be from 0 to {plan.cardinality}, the number of elements, got {at}"
        )


def _is_place(at: Any) -> bool:
    if at is None or _is_count(at):
        return True
    if not isinstance(at, dict) or not ("own" in at or "from" in at or "count" in at):
        return False
    counts = [at[name] for name in ("skip", "count") if name in at]
    inputs = at.get("inputs", [])
    places = [at[name] for name in _INSIDE if name in at]
    return (
        isinstance(inputs, list)
        and all(map(_is_count, counts))
        and all(map(_is_place, places + inputs))
    )


def _has_positions(node: Node) -> bool:
    """Whether a state can be one number: the plan has random access, or only order prevents it."""
    return all(one.obstacle is None or isinstance(one, Map) for one in walk_plan(node))


def _is_count(value: Any) -> bool:
    return _is_int(value) and value >= 0


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
