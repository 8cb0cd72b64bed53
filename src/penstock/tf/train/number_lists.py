"""The numbers of a message: a list that knows its dtype."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np


class NumberList(list[Any]):
    """The numbers of a message, of which NumPy makes an array of the message's dtype."""

    def __init__(self, values: Iterable[Any], dtype: type[np.generic]) -> None:
        super().__init__(values)
        self._dtype = dtype

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        return np.array(list(self), self._dtype if dtype is None else dtype)

    def __reduce__(self) -> tuple[Any, ...]:
        return NumberList, (list(self), self._dtype)
