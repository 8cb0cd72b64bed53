"""`tf.Variable` for ported code: what is read from it is a tensor.

A variable is stored as plain penstock stores it; only what its methods return is converted. Values
of torch and JAX are returned as they are.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from penstock.distribute.values.variables import Variable, VariableCopy, is_in_run
from penstock.element.dtypes import as_dtype
from penstock.element.spec import TensorShape
from penstock.tf.ported_functions import wrap
from penstock.tf.values import Reference, Tensor, as_tensor


class PortedVariable(Variable):
    """`tf.Variable`; see `penstock.Variable`. Its values answer `.numpy()`.

    >>> from penstock import tf
    >>> step = tf.Variable(1)
    >>> (step + 1).numpy(), step.assign_add(2).numpy(), step.read_value()
    (np.int32(2), np.int32(3), <tf.Tensor: shape=(), dtype=int32, numpy=3>)
    >>> step.shape, step.dtype
    (TensorShape([]), tf.int32)
    """

    __hash__ = object.__hash__

    @classmethod
    def _form_of(cls, kind: Any) -> type[Variable]:
        return _ported(kind)

    def _current_value(self) -> Any:
        return wrap(super()._current_value())

    def numpy(self) -> Any:
        """The value as a NumPy array or scalar, or bytes."""
        value = super().numpy()
        return value.numpy() if isinstance(value, Tensor) else value

    def _assign(self, how: str, value: Any, read_value: bool) -> Any:
        """Returns the variable, as TensorFlow does; for one replica, the value that it has now."""
        changed = super()._assign(how, value, read_value)
        if not read_value:
            return None
        return wrap(changed) if is_in_run() or isinstance(self, VariableCopy) else self

    @property
    def shape(self) -> Any:
        return TensorShape(super().shape) if self._is_numpy() else super().shape

    @property
    def dtype(self) -> Any:
        return as_dtype(super().dtype) if self._is_numpy() else super().dtype

    def _is_numpy(self) -> bool:
        return self._replicas.backend.name == "numpy"

    def is_initialized(self, name: str | None = None) -> Tensor:
        """True: a variable has its initial value from the start."""
        return as_tensor(np.True_)

    def ref(self) -> Reference:
        """The variable as a key of a dict."""
        return Reference(self)


@functools.cache
def _ported(kind: Any) -> type[Variable]:
    """The class of variables of a kind, such as `MirroredVariable`, that return tensors."""
    if kind is Variable:
        return PortedVariable
    return type(kind.__name__, (PortedVariable, kind), {"__doc__": kind.__doc__})
