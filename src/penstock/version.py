"""The versions of penstock and of its protocol: which processes can talk to each other.

Both sides of every connection name their version of the protocol before anything else. The side
with the newer version decides, because only that side knows what has changed: it refuses peers that
are older than `OLDEST`. Versions of the package may differ. CONTRIBUTING.md says how messages may
change.
"""

from __future__ import annotations

VERSION = "0.2.0"

PROTOCOL = 2
"""Increases by one with each release that changes what processes say to each other."""

MOVED_STATES = 2
"""The first version whose workers accept states from workers that leave."""

OLDEST = 1
"""The oldest version that this process still talks to: that of the release before, or older."""


def describe_mismatch(theirs: int) -> str | None:
    """Why this process refuses a peer of the version `theirs`; None if it does not."""
    if theirs >= OLDEST:
        return None
    return (
        f"speaks protocol {theirs} of penstock, and this process {_describe_protocols()}; "
        "upgrade penstock there"
    )


def describe_refusal(theirs: int) -> str:
    """Why a newer peer, of the version `theirs`, refuses this process."""
    return (
        f"speaks protocol {theirs} of penstock and refuses this process, which speaks protocol "
        f"{PROTOCOL}; upgrade penstock here"
    )


def _describe_protocols() -> str:
    if OLDEST == PROTOCOL:
        return f"protocol {PROTOCOL}"
    return f"protocols {OLDEST} to {PROTOCOL}"
