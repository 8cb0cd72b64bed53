"""Processes of this machine: starting them, and memory and descriptors that they share."""
