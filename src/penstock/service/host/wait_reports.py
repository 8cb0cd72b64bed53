"""What a reader that waits reports: which consumers, workers or elements it waits for.

A wait for consumers or workers becomes an error after `timing.WAIT_LIMIT`.
"""

from __future__ import annotations

import logging

from penstock.errors import DeadlineExceededError, OpError, UnavailableError
from penstock.service.host.links import Link, Links
from penstock.service.logic.fetching import Ask
from penstock.service.protocol import timing

_LOG = logging.getLogger("penstock.service")


def report_obstacle(obstacle: OpError, seconds: float) -> None:
    """Logs why nothing can arrive; raises it once the wait has taken too long."""
    if seconds > timing.WAIT_LIMIT:
        raise type(obstacle)(f"distribute: waited {seconds:.0f} s, and {obstacle.message}")
    _LOG.warning("distribute: waiting for %.0f s: %s", seconds, obstacle.message)


def missing_consumers(missing: tuple[int, ...], consumers: int) -> OpError:
    """The consumers of a coordinated read that have not begun."""
    who, have = ("consumer", "has") if len(missing) == 1 else ("consumers", "have")
    return DeadlineExceededError(
        f"{who} {', '.join(map(str, missing))} of {consumers} {have} not begun to read"
    )


def missing_workers(links: Links, address: str, seconds: float) -> OpError:
    """Why no worker is connected; raises it early if none was ever reached."""
    reasons = links.missing()
    if not reasons:
        return UnavailableError(
            f"dispatcher {address} has no workers; start one with: "
            f"penstock worker --dispatcher {address}"
        )
    what = f"no worker can be reached from here ({'; '.join(reasons)})"
    if seconds > timing.UNREACHABLE and links.unreachable and not links.ever:
        raise UnavailableError(f"distribute: {what}")
    return UnavailableError(what)


def describe_request(ask: Ask, link: Link, streams: int, now: float) -> str:
    """The element that comes next, the worker that computes it, and the function it runs."""
    stream = "" if streams == 1 else f" of stream {ask.feed.stream}"
    where = f", in {link.where}" if link.where else ""
    silence = link.silence(now)
    says = f", which has said nothing for {silence:.0f} s" if silence > timing.QUIET_WORKER else ""
    return f"element {ask.at}{stream}{where} ({link.connection.peer}{says})"
