"""The plan: a dataset as data. Immutable trees of nodes, and functions from plans to plans."""
