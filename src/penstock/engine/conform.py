"""Conforming: values that come from outside, as a signature promises them.

A signature is looked at once; the common leaves are then converted without looking at it again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from penstock.element import nest
from penstock.element.spec import TensorSpec
from penstock.element.values import as_value
from penstock.engine.copies import kept

Convert = Callable[[Any], Any]

_NUMBERS = (int, float, bool, np.number, np.bool_)


def converter(signature: Any) -> Convert:
    """Converts values to `signature`; ValueError or TypeError where one does not fit."""
    if type(signature) is tuple:
        return _tuple([converter(part) for part in signature])
    if type(signature) is dict:
        return _dict({key: converter(part) for key, part in signature.items()})
    leaves, tree = nest.flatten(signature)
    converts = [_leaf(leaf) for leaf in leaves]
    if tree == nest.LEAF:
        return converts[0]

    def convert(value: Any) -> Any:
        parts = nest.flatten_up_to(tree, value)
        made = [convert(part) for convert, part in zip(converts, parts, strict=True)]
        return nest.unflatten(tree, made)

    return convert


def _tuple(converts: list[Convert]) -> Convert:
    def convert(value: Any) -> Any:
        if type(value) is not tuple or len(value) != len(converts):
            raise ValueError("not a tuple of that length")
        return tuple([convert(part) for convert, part in zip(converts, value, strict=True)])

    return convert


def _dict(converts: dict[Any, Convert]) -> Convert:
    def convert(value: Any) -> Any:
        if not isinstance(value, dict) or value.keys() != converts.keys():
            raise ValueError("not a dict with those keys")
        return {key: convert(value[key]) for key, convert in converts.items()}

    return convert


def _leaf(spec: Any) -> Convert:
    if isinstance(spec, TensorSpec):
        return _scalar(spec) if spec.shape.dims == () else _array(spec)

    def convert(value: Any) -> Any:
        leaf = kept(as_value(value))
        if not spec.fits(leaf):
            raise ValueError("another kind of value")
        return leaf

    return convert


def _scalar(spec: TensorSpec) -> Convert:
    if spec.dtype.dtype.kind in "OV":
        return _array(spec)
    make = spec.dtype.dtype.type
    slow = _array(spec)

    def convert(value: Any) -> Any:
        kind = type(value)
        if kind is make:
            return value
        return make(value) if issubclass(kind, _NUMBERS) else slow(value)

    return convert


def _array(spec: TensorSpec) -> Convert:
    dtype, shape = spec.dtype, spec.shape

    def convert(given: Any) -> Any:
        value = given
        if isinstance(value, (list, tuple)) and not value:
            value = np.zeros(0, dtype.dtype)
        if type(value) is not np.ndarray or value.dtype != dtype.dtype or not value.ndim:
            value = as_value(value, dtype)
        if not shape.fits(np.shape(value)):
            raise ValueError("another shape")
        return kept(value) if hasattr(given, "__array__") else value

    return convert
