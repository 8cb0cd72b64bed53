"""`tf.linalg`: the few operations that input functions use; NumPy has many more."""

from penstock.tf.arrays import eye
from penstock.tf.math import einsum, l2_normalize, matmul, norm, tensordot
from penstock.tf.missing_operations import refuse_names_of_tf

__all__ = ["einsum", "eye", "l2_normalize", "matmul", "norm", "tensordot"]

__getattr__ = refuse_names_of_tf("linalg", __all__)
