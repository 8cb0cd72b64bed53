"""The data service: plans computed by other processes. So far, how they would share the work."""

from __future__ import annotations

import enum


class ShardingPolicy(enum.IntEnum):
    """How the workers of a service divide a dataset.

    OFF gives every worker all of it, DYNAMIC hands out pieces of the source on demand; the others
    divide it beforehand, by files, by elements, by whichever is possible, or as `shard` hints.
    """

    OFF = 0
    DYNAMIC = 1
    FILE = 2
    DATA = 3
    FILE_OR_DATA = 4
    HINT = 5
