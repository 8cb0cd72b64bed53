"""What TensorFlow keeps under `distribute.experimental`: strategies and contexts, the same ones."""

from penstock.distribute.multiworker import (
    CommunicationImplementation,
    CommunicationOptions,
    MultiWorkerMirroredStrategy,
)
from penstock.distribute.options import ValueContext
from penstock.distribute.strategy import TPUStrategy

__all__ = [
    "CommunicationImplementation",
    "CommunicationOptions",
    "MultiWorkerMirroredStrategy",
    "TPUStrategy",
    "ValueContext",
]
