"""`Optional`: a value that may be missing; `get_next_as_optional` returns one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from penstock.element.spec import OptionalSpec
from penstock.element.values import as_element, spec_of
from penstock.errors import InvalidArgumentError

_NOTHING = object()


class Optional:
    """An element, or no element.

    >>> Optional.from_value(3).get_value(), bool(Optional.empty(None).has_value())
    (np.int32(3), False)
    """

    __slots__ = ("_present", "_spec", "_value")

    def __init__(
        self, value: Any, element_spec: Any, present: Callable[[Any], Any] | None = None
    ) -> None:
        self._value = value
        self._spec = element_spec
        self._present = present
        """Converts the answer of `has_value`: ported code gets a tensor."""

    @classmethod
    def from_value(cls, value: Any) -> Optional:
        element = as_element(value)
        return cls(element, spec_of(element))

    @classmethod
    def empty(cls, element_spec: Any, present: Callable[[Any], Any] | None = None) -> Optional:
        return cls(_NOTHING, element_spec, present)

    def has_value(self, name: str | None = None) -> Any:
        """Whether there is an element."""
        return self._is_full if self._present is None else self._present(np.bool_(self._is_full))

    @property
    def _is_full(self) -> bool:
        return self._value is not _NOTHING

    def get_value(self, name: str | None = None) -> Any:
        if not self._is_full:
            raise InvalidArgumentError(
                "Optional.get_value: the given optional does not have a value; "
                "ask has_value() first"
            )
        return self._value

    @property
    def element_spec(self) -> Any:
        return self._spec() if callable(self._spec) else self._spec

    def __leaf_spec__(self) -> OptionalSpec:
        return OptionalSpec(self.element_spec)

    def __repr__(self) -> str:
        return f"<Optional {self._value if self._is_full else 'empty'}>"
