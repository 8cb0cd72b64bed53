"""The names that TensorFlow has under `distribute.experimental`: aliases of the same classes."""

from typing import TYPE_CHECKING

from penstock.distribute.multiworker import (
    CommunicationImplementation,
    CommunicationOptions,
    MultiWorkerMirroredStrategy,
)
from penstock.distribute.strategy import TPUStrategy
from penstock.distribute.strategy_options import ValueContext
from penstock.missing_names import missing_from_distribute, refuse_names

__all__ = [
    "CommunicationImplementation",
    "CommunicationOptions",
    "MultiWorkerMirroredStrategy",
    "TPUStrategy",
    "ValueContext",
]

if not TYPE_CHECKING:  # A type checker would take any name.
    __getattr__ = refuse_names("distribute.experimental", __all__, missing_from_distribute)
