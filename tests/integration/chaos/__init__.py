"""Chaos: a service of real processes that are killed, frozen and cut off by a schedule.

What the readers got is counted at the end: nothing may be missing, and nothing may come twice.
`python -m tests.integration.chaos --help` says how to run it.
"""
