"""`tf.linalg`: the few operations that input functions use; NumPy has many more."""

from typing import NoReturn

from penstock.tf.arrays import eye
from penstock.tf.elementwise import einsum, l2_normalize, matmul, norm, tensordot
from penstock.tf.missing_operations import missing_from_tf

__all__ = ["einsum", "eye", "l2_normalize", "matmul", "norm", "tensordot"]


def __getattr__(name: str) -> NoReturn:
    raise missing_from_tf("linalg", name, __all__)
