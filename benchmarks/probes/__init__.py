"""Measurements of penstock alone; each module runs in its environment and prints JSON."""
