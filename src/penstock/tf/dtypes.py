"""`tf.dtypes`: the dtypes, and the operations that change them."""

from typing import Any

from penstock.element import dtypes
from penstock.element.dtypes import DType, as_dtype
from penstock.tf.arrays import cast, saturate_cast
from penstock.tf.math import complex
from penstock.tf.missing_operations import missing_from_tf

__all__ = ["DType", "as_dtype", "cast", "complex", "saturate_cast"]


def __getattr__(name: str) -> Any:
    if name in dtypes.names():
        return getattr(dtypes, name)
    raise missing_from_tf("dtypes", name, __all__)
