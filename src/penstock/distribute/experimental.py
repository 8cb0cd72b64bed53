"""The names that TensorFlow has under `distribute.experimental`: aliases of the same classes."""

from typing import NoReturn

from penstock.distribute.multiworker import (
    CommunicationImplementation,
    CommunicationOptions,
    MultiWorkerMirroredStrategy,
)
from penstock.distribute.strategy import TPUStrategy
from penstock.distribute.strategy_options import ValueContext
from penstock.missing_names import missing_from_distribute

__all__ = [
    "CommunicationImplementation",
    "CommunicationOptions",
    "MultiWorkerMirroredStrategy",
    "TPUStrategy",
    "ValueContext",
]


def __getattr__(name: str) -> NoReturn:
    raise missing_from_distribute("distribute.experimental", name, __all__)
