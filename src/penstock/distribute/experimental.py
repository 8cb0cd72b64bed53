"""What TensorFlow keeps under `distribute.experimental`: strategies and contexts, the same ones."""

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
