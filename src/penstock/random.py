"""Randomness for everybody: `set_seed`, and nothing else; the rest belongs to the plan."""

from penstock.plan.seeds import set_seed

__all__ = ["set_seed"]
