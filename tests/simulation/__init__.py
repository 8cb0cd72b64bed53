"""Whole services on a virtual clock: time, network and engine are simulated, all else is real."""
