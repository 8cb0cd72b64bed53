"""The names that TensorFlow has under `distribute.experimental`: aliases of the same classes."""

from penstock.distribute.multiworker import (
    CommunicationImplementation,
    CommunicationOptions,
    MultiWorkerMirroredStrategy,
)
from penstock.distribute.strategy import TPUStrategy
from penstock.distribute.strategy_options import ValueContext

__all__ = [
    "CommunicationImplementation",
    "CommunicationOptions",
    "MultiWorkerMirroredStrategy",
    "TPUStrategy",
    "ValueContext",
]
