"""Whole services on a virtual clock: time, network and engine are made up, all else is real."""
