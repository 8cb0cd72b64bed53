"""Advice: what would make a pipeline faster, as far as its figures say so."""

from __future__ import annotations

from penstock.engine.figures import CallTimes
from penstock.engine.tuning import cores
from penstock.plan import nodes
from penstock.plan.nodes import Node

AHEAD = "end the pipeline with prefetch(AUTOTUNE), so that it works while the program computes"
SPREAD = "divide the work among more cores or machines: service.distribute"
DELIVERY = "send fewer bytes: small dtypes such as uint8, converted on the device"

_IDLE_SHARE = 0.75
"""Threads that compute for a smaller share of their calls wait: for the lock, or for data."""

_ONE_CORE = 0.6
"""Calls that use at least so many cores, while the pipeline waits for them, do compute."""


def hint_of(node: Node) -> str:
    """What helps if this operator takes most of the time; empty if nothing special does."""
    function = "it" if not node.functions else node.functions[0].description
    match node:
        case nodes.Map(vectorized=False, parallel=None):
            return f"call {function} in parallel: map(..., num_parallel_calls=AUTOTUNE)"
        case nodes.Interleave(parallel=None):
            return (
                "read several inputs at once: interleave(..., cycle_length=8, "
                "num_parallel_calls=AUTOTUNE)"
            )
        case nodes.Records():
            return (
                "read several files at once: "
                "list_files(...).interleave(..., num_parallel_calls=AUTOTUNE)"
            )
        case nodes.Generator():
            return f"{function} yields one element after the other: yield larger ones, and unbatch"
        case nodes.Map() | nodes.Filter() | nodes.TakeWhile() | nodes.Scan():
            return f"make {function} faster, or {SPREAD}"
    return ""


def advise_calls(function: str, calls: CallTimes, waited: float) -> str:
    """What helps if the calls of a parallel map are the bottleneck.

    `waited` is for how long the pipeline waited for them.
    """
    if calls.place == "processes":
        return f"its calls run in {calls.most} processes: {SPREAD}"
    is_idle = calls.cpu_seconds < _IDLE_SHARE * calls.seconds
    used = calls.cpu_seconds / max(waited, 1e-9)
    if is_idle and used < _ONE_CORE:
        return f"{function} waits rather than computes: raise num_parallel_calls"
    if is_idle and calls.most > 1 and cores() > 1:
        return (
            f"{function} holds the interpreter's lock: use processes, options.executor = "
            '"processes"'
        )
    return f"its calls compute on {used:.1f} cores: {SPREAD}"
