"""Tab completion: which names of an object are shown."""

from __future__ import annotations

from collections.abc import Iterable


class PublicNames:
    """A base of classes whose objects show their public names only, in `dir` and in notebooks."""

    def __dir__(self) -> Iterable[str]:
        return [name for name in super().__dir__() if not name.startswith("_")]
