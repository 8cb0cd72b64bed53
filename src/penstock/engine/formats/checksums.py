"""CRC32C by the package google_crc32c, which is loaded when it is first needed."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache


@cache
def load_crc32c(name: str = "value") -> Callable[..., int]:
    """A function of the package: `value` computes a checksum, `extend` that of more bytes.

    Both take bytes and contiguous arrays.
    """
    import google_crc32c

    function: Callable[..., int] = getattr(google_crc32c, name)
    return function


def crc32c(data: bytes) -> int:
    return load_crc32c()(data)
