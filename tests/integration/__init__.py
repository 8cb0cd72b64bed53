"""Whole services, with real sockets, real processes and `kill -9`."""
