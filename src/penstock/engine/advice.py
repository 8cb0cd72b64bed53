"""Advice: what would make a pipeline faster, as far as its figures say so."""

from __future__ import annotations

from penstock.engine.figures import CallTimes
from penstock.engine.tuning import cores
from penstock.plan import nodes
from penstock.plan.nodes import Node

AHEAD = "end the pipeline with prefetch(AUTOTUNE), so that it works while the program computes"
SPREAD = "divide the work among more cores or machines: service.distribute"
DELIVERY = "send fewer bytes: small dtypes such as uint8, converted on the device"

PARALLEL = "in parallel: map(..., num_parallel_calls=AUTOTUNE)"
"""How the hint for a function ends that is called for one element after the other."""

_SHORT_CALL = 10e-6
"""Calls that take fewer seconds are not worth their way to another thread or process."""

_IDLE_SHARE = 0.75
"""Threads that compute for a smaller share of their calls wait: for the lock, or for data."""

_ONE_CORE = 0.6
"""Calls that use at least so many cores, while the pipeline waits for them, do compute."""


def hint_of(node: Node) -> str:
    """What helps if this operator takes most of the time; empty if nothing special does."""
    function = "it" if not node.functions else node.functions[0].description
    match node:
        case nodes.Map(vectorized=False, parallel=None, random=None):
            return f"call {function} {PARALLEL}"
        case nodes.Map(vectorized=False, parallel=None):
            return (
                f"call {function} in parallel: map(..., num_parallel_calls=AUTOTUNE, random=True)"
            )
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


def advise_single_calls(function: str, hint: str, seconds: float) -> str:
    """What helps if a function that is called in turn is the bottleneck: its hint, or better.

    `seconds` is for how long a call takes.
    """
    if not hint.endswith(PARALLEL) or seconds >= _SHORT_CALL:
        return hint
    return (
        f"a call of {function} takes {seconds * 1e6:.1f} microseconds, too little to divide the "
        "calls: compute many elements in each, map(..., vectorized=True)"
    )


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
