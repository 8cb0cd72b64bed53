"""`tf.autograph`: decorators that leave functions alone, for functions run as they are written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from penstock.tf.missing_operations import Namespace, refuse_names_of_tf

__all__ = ["experimental", "set_verbosity"]


def set_verbosity(level: int, alsologtostdout: bool = False) -> None:
    """Does nothing: no function is converted."""


class AutographExperimental(Namespace, module="autograph.experimental"):
    """Decorators and hints for the conversion of functions, which does not take place."""

    @staticmethod
    def do_not_convert(func: Callable[..., Any] | None = None) -> Any:
        """The function itself."""
        return func if func is not None else lambda function: function

    @staticmethod
    def set_loop_options(**_: Any) -> None:
        """Does nothing."""


experimental = AutographExperimental

__getattr__ = refuse_names_of_tf("autograph", __all__)
