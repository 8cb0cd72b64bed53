"""The saved states of clients: what they claim from the dispatcher, and how several are merged.

A state may say "skip k elements after this point". The leases that the client held there say which
elements those are, as long as no operator after the service changes the number of elements.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from penstock.errors import InvalidArgumentError
from penstock.service.logic.leases import Ranges
from penstock.service.protocol.messages import StreamRange

_CALL = "service.merge_states"


def known_streams(state: dict[str, Any] | None) -> dict[str, Any]:
    """The streams of workers that a state knows, as fields of `OpenIteration`."""
    order = (state or {}).get("order", {})
    begins = tuple(order.get("begins", ()))
    return {"streams": max(len(order.get("open", ())), len(begins)), "begins": begins}


def claims_of(state: dict[str, Any]) -> dict[str, Any]:
    """The elements that a state of leases claims, as fields of `OpenIteration`."""
    consumed = [
        StreamRange(int(stream), start, stop)
        for stream, ranges in state["consumed"].items()
        for start, stop in ranges
    ]
    return {
        "consumed": tuple(consumed),
        "held": tuple(StreamRange(*span) for span in state["held"]),
        "merged": state.get("merged", False),
        "finished": tuple((int(stream), length) for stream, length in state["ended"].items()),
    }


def merge_states(states: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """One state for all clients of a job; each new client loads it."""
    if not states:
        raise InvalidArgumentError(f"{_CALL}: there are no states to merge")
    found = [_consumption_of(state) for state in states]
    for name in ("repetition", "key", "epoch"):
        if any(own[name] != found[0][name] for own in found):
            raise InvalidArgumentError(
                f"{_CALL}: the states are of different iterations of a job ({name} differs); "
                "merge states that were saved at the same time"
            )
    if len({state["plan"] for state in states}) > 1:
        raise InvalidArgumentError(f"{_CALL}: the states are of different datasets")
    return {**states[0], "at": _replace_service_state(states[0]["at"], _union(found))}


def _consumption_of(state: Any) -> dict[str, Any]:
    """What one client had consumed; the rest of its leases is dropped."""
    own, skip = _service_state(state["at"] if isinstance(state, dict) and "at" in state else None)
    consumed = {stream: Ranges(map(tuple, pairs)) for stream, pairs in own["consumed"].items()}
    for stream, start, stop in own["held"]:
        count = min(skip, stop - start)
        consumed.setdefault(str(stream), Ranges()).add(start, start + count)
        skip -= count
    return {**own, "consumed": consumed, "held": []}


def _service_state(at: Any) -> tuple[dict[str, Any], int]:
    """The service's part of an iterator's state, and how many elements are skipped after it."""
    skip = 0
    while isinstance(at, dict):
        if "skip" in at:
            skip, at = skip + at["skip"], at["from"]
        elif isinstance(at.get("own"), dict) and "held" in at["own"]:
            return at["own"], skip
        elif at.get("own") is None and len(at.get("inputs", ())) == 1:
            at = at["inputs"][0]
        else:
            break
    raise InvalidArgumentError(
        f"{_CALL}: needs states of iterators over a distributed dataset with a job_name, after "
        "which elements are at most mapped or prefetched; batch before distribute"
    )


def _union(found: list[dict[str, Any]]) -> dict[str, Any]:
    consumed: dict[str, Ranges] = {}
    for own in found:
        for stream, ranges in own["consumed"].items():
            for start, stop in ranges:
                consumed.setdefault(stream, Ranges()).add(start, stop)
    return {
        **found[0],
        "clients": [client for own in found for client in own["clients"]],
        "consumed": {
            stream: [list(pair) for pair in ranges] for stream, ranges in consumed.items()
        },
        "held": [],
        "merged": True,
        "ended": {stream: length for own in found for stream, length in own["ended"].items()},
    }


def _replace_service_state(at: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    """Puts another service's part into a state, and skips nothing after it."""
    if "skip" in at:
        return _replace_service_state(at["from"], own)
    if isinstance(at.get("own"), dict) and "held" in at["own"]:
        return {**at, "own": own}
    return {**at, "inputs": [_replace_service_state(at["inputs"][0], own)]}
