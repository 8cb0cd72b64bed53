"""The command `penstock`: dispatchers, workers, what they are doing, and certificates for them.

Every start of a worker comes through here, so what a command does not need must not be imported.
"""

from penstock.cli.commands import main

__all__ = ["main"]
