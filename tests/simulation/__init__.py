"""Whole services on a virtual clock: the real logic and codec, everything else made up."""
