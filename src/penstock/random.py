"""`set_seed`, the seed of all datasets that are not given one."""

from typing import TYPE_CHECKING, NoReturn

from penstock.missing_names import missing_from_module
from penstock.plan.seeds import set_seed

__all__ = ["set_seed"]


if not TYPE_CHECKING:  # A type checker would take any name.

    def __getattr__(name: str) -> NoReturn:
        raise missing_from_module("random", name, __all__)
