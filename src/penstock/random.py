"""`set_seed`, the seed of all datasets that are not given one."""

from typing import TYPE_CHECKING

from penstock.missing_names import refuse_names
from penstock.plan.seeds import set_seed

__all__ = ["set_seed"]


if not TYPE_CHECKING:  # A type checker would take any name.
    __getattr__ = refuse_names("random", __all__)
