"""Benchmarks: penstock side by side with its peers, interleaved in one run, as ratios.

Only the programs under `peers/` and `probes/` import penstock or a peer: they run inside the
environments that `environments` makes. The launcher itself needs only the standard library.
"""
