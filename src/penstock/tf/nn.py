"""`tf.nn`: the few operations that input functions use; training frameworks have many more."""

from penstock.tf.math import (
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
from penstock.tf.missing_operations import refuse_names_of_tf
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

__getattr__ = refuse_names_of_tf("nn", __all__)
