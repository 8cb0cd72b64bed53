"""`tf.nn`: the few operations that input functions use; training frameworks have many more."""

from typing import NoReturn

from penstock.tf.elementwise import (
    l2_normalize,
    log_softmax,
    relu,
    sigmoid,
    softmax,
    softplus,
    softsign,
    tanh,
    zero_fraction,
)
from penstock.tf.missing_operations import missing_from_tf
from penstock.tf.selection import in_top_k, top_k

__all__ = [
    "in_top_k",
    "l2_normalize",
    "log_softmax",
    "relu",
    "sigmoid",
    "softmax",
    "softplus",
    "softsign",
    "tanh",
    "top_k",
    "zero_fraction",
]


def __getattr__(name: str) -> NoReturn:
    raise missing_from_tf("nn", name, __all__)
