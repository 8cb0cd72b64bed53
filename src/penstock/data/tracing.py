"""Functions of users, checked when the dataset is built.

A function is called here only if that needs no other function and no file: on the first element of
the plan before it. In all other plans the engine checks the results while it iterates.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from penstock.data.arguments import describe, is_dataset
from penstock.element.values import as_element
from penstock.engine.copies import copy_unowned
from penstock.engine.specs import trace
from penstock.engine.streams.elementwise import check_scan, check_state
from penstock.engine.streams.windowing import check_key
from penstock.errors import InvalidArgumentError, NotADatasetError, UnfitTypeError
from penstock.plan.functions import Function, check_function
from penstock.plan.nodes import Node, known_spec
from penstock.plan.seeds import seed_scope

Call = Callable[..., Any]


_STATE_AND_ELEMENT = "the state and the element"


def element_function(where: str, call: Call, plan: Node, is_random: bool = False) -> Function:
    """A function of one element, whose components are arguments if it is a tuple.

    A random function gets a generator as its last argument.
    """
    spec = known_spec(plan)
    if spec is None:
        return check_function(where, call)
    is_tuple = type(spec) is tuple
    meaning = "one for each component of the element" if is_tuple else "the element"
    if is_random:
        meaning += ", and a generator because of random=True"
    return check_function(where, call, int(is_random) + (len(spec) if is_tuple else 1), meaning)


def predicate_function(where: str, call: Call, plan: Node) -> Function:
    """A function that must return a single bool."""
    function = element_function(where, call, plan)
    found, result = trace(plan, function)
    if found and not _is_bool(result):
        raise InvalidArgumentError(
            f"{where}: {function} must return one True or False, got {describe(result)}"
        )
    return function


def shard_function(where: str, call: Call, plan: Node) -> Function:
    """A function that must return the number of a shard."""
    function = element_function(where, call, plan)
    found, result = trace(plan, function)
    if found and (isinstance(result, bool) or not hasattr(result, "__index__") or np.ndim(result)):
        raise UnfitTypeError(
            f"{where}: {function} must return the number of a shard, got {describe(result)}"
        )
    return function


def _is_bool(value: Any) -> bool:
    if isinstance(value, np.ndarray):
        return value.ndim == 0 and value.dtype == bool
    return isinstance(value, bool | np.bool_)


def dataset_function(where: str, call: Call, plan: Node) -> Function:
    """A function that must return a dataset."""
    function = element_function(where, call, plan)
    found, result = trace(plan, function)
    if found:
        check_dataset(where, function, result)
    return function


def reader_function(where: str, call: Call, shards: Any) -> Function:
    """A function that gets a dataset of the datasets of all shards, and must return a dataset.

    It is called here on `shards`, because it only arranges them. What it raises is raised here.
    """
    function = check_function(where, call, 1, "a dataset of datasets, one for each shard")
    with seed_scope(0):
        check_dataset(where, function, function.call(shards))
    return function


def check_dataset(where: str, function: Function, result: Any) -> None:
    if not is_dataset(result):
        raise NotADatasetError(f"{where}: {function} must return a Dataset, got {describe(result)}")


def scan_function(where: str, call: Call, plan: Node, state: Any) -> Function:
    """A function of (state, element) that must return (state, element)."""
    function = check_function(where, call, 2, _STATE_AND_ELEMENT)
    whole = _join_arguments(plan)
    found, result = trace(plan, Function(lambda *parts: call(copy_unowned(state), whole(parts))))
    if found:
        check_scan(f"{where}: {function}", state, result)
    return function


def _join_arguments(plan: Node) -> Callable[[tuple[Any, ...]], Any]:
    """A function from the arguments that an element was passed as to the element."""
    if type(known_spec(plan)) is tuple:
        return lambda parts: parts
    return lambda parts: parts[0]


def grouping_functions(
    where: str, key: Call, reduce: Call, plan: Node, as_dataset: Callable[[Any], Any]
) -> tuple[Function, Function]:
    """The functions of group_by_window: an int64 key of an element, a dataset of a window."""
    key_function = element_function(where, key, plan)
    reduce_function = check_function(where, reduce, 2, "the key and the dataset of a window")
    whole = _join_arguments(plan)

    def first_window(*parts: Any) -> tuple[Any, ...]:
        found = key(*parts)
        try:
            return found, reduce(np.int64(found), as_dataset(whole(parts)))
        except Exception:  # Iteration raises and reports it again.
            return (found,)

    found, results = trace(plan, Function(first_window))
    if found:
        check_key(f"{where}: {key_function}", results[0])
    if found and len(results) == 2:
        check_dataset(where, reduce_function, results[1])
    return key_function, reduce_function


def reducer_functions(
    where: str, key: Call, init: Call, reduce: Call, finalize: Call, plan: Node
) -> tuple[Function, Function, Function, Function]:
    """The functions of group_by_reducer: of an element, a key, (state, element) and a state."""
    made = (
        element_function(where, key, plan),
        check_function(where, init, 1),
        check_function(where, reduce, 2, _STATE_AND_ELEMENT),
        check_function(where, finalize),
    )
    whole = _join_arguments(plan)
    found, keyed = trace(plan, made[0])
    if found:
        number = check_key(f"{where}: {made[0]}", keyed)
        first = Function(lambda *parts: _reduce_first(init, reduce, number, whole(parts)))
        found, states = trace(plan, first)
    if found:
        check_state(f"{where}: {made[2]}", *states)
    return made


def _reduce_first(init: Call, reduce: Call, key: int, element: Any) -> tuple[Any, Any]:
    """The state before the first element, and after it."""
    state = as_element(init(np.int64(key)))
    return state, reduce(copy_unowned(state), element)
