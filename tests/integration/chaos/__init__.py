"""Chaos: a service of real processes that are killed, frozen and cut off by a schedule.

At the end the elements of all readers are counted: none may be missing, and none may come twice.
`python -m tests.integration.chaos --help` says how to run it.
"""
