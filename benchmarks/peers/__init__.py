"""One program file for each peer, run as a long-lived child inside that peer's environment.

A program is a function of the number of elements; it builds its pipeline (not timed) and returns an
object that is iterated afresh for every measured pass. Each peer does the work in its fastest
ordinary way.
"""
