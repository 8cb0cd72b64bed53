"""`set_seed`, the seed of all datasets that are not given one."""

from penstock.plan.seeds import set_seed

__all__ = ["set_seed"]
