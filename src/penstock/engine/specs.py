"""Specs of plans: computed without iterating, if need be by calling users' functions on samples.

What a function returns is not known before it is called. So it is called on the first two elements
of its input and, where a dimension of the input is unknown, on the first one shortened there.
Dimensions that differ between the results are unknown. A spec is found once per node and kept.
What such a call assigns to variables is undone.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from penstock.element import nest
from penstock.element.chunk import Chunk, describe_spec, unusable_element
from penstock.element.ragged import Ragged
from penstock.element.spec import DatasetSpec, TensorShape, TensorSpec, relax
from penstock.element.values import as_element, as_value, spec_of_leaf, zeros
from penstock.element.values import spec_of as spec_of_element
from penstock.engine.access import access, call_vectorized
from penstock.engine.context import Context, Environment
from penstock.engine.copies import copy_unowned
from penstock.engine.lower import open_plan
from penstock.engine.results import holds_list, list_shapes
from penstock.engine.streams.elementwise import check_state
from penstock.engine.streams.windowing import check_key, plan_of
from penstock.engine.trial_calls import undo_assignments
from penstock.engine.user_calls import Calls
from penstock.errors import OpError
from penstock.plan import nodes
from penstock.plan.functions import Function, Trial
from penstock.plan.nodes import OPAQUE, Node, known_spec
from penstock.plan.options import Options
from penstock.plan.seeds import generator, seed_scope

_FAILED_ON_SAMPLES = (
    "The function was called on the first elements to find out what it returns, and failed on all "
    "of them. If it returns something for later ones, say what: Dataset.map(..., output_signature=)"
)

_TRIED = 1000
"""How many elements a filter may refuse before `_Probe` makes up a sample of zeros."""


def spec_of(node: Node, environment: Environment) -> Any:
    """The spec of a node; calls users' functions on samples if the plan does not say it."""
    if (spec := _spec_so_far(node)) is not None:
        return spec
    inputs = [spec_of(part, environment) for part in node.inputs]
    spec = node.spec_from_samples(*inputs)
    if spec is OPAQUE:
        with undo_assignments():
            spec = _Probe(environment).spec(node, inputs[0])
    node.keep_spec(spec, sampled=True)
    return spec


def is_certain(node: Node) -> bool:
    """Whether the spec holds for every element, because no function was called for it."""
    if node.declared_spec is not None:
        return True
    if not all(map(is_certain, node.inputs)):
        return False
    return node.spec_from(*map(known_spec, node.inputs)) is not OPAQUE


def is_steady(node: Node) -> bool:
    """Whether the number of rows in the spec is reliable, even if functions were called for it.

    It is if all arguments of the functions have one shape: results of different shapes are then
    rare. If the arguments have different shapes, two samples do not show all of them. The number of
    rows of a batch follows from the batching operator alone.
    """
    if node.declared_spec is not None:
        return True
    if isinstance(node, nodes.Batch | nodes.Rebatch):
        return True
    if not all(map(is_steady, node.inputs)):
        return False
    given = [_spec_so_far(part) for part in node.inputs]
    return node.spec_from(*given) is not OPAQUE or not any(map(_has_unknown, given))


def _spec_so_far(node: Node) -> Any:
    """The spec, if it is known or was found on samples earlier; else None."""
    known_spec(node)
    return None if node.found_spec is None else node.found_spec.spec


def trace(node: Node, function: Function) -> tuple[bool, Any]:
    """Calls a function on the first element of `node`, if no other function is called for that.

    Returns whether that was possible, and the result.
    """
    if node.blocked is not None or not node.pure or node.cardinality == 0:
        return False, None
    rows = access(node, known_spec)(range(1), (0,))
    try:
        with undo_assignments():
            return True, Calls("trace", function).one(rows.elements()[0], 0)
    except Exception:
        return False, None


class _Probe:
    """Finds the spec of one operator that calls a function."""

    def __init__(self, environment: Environment) -> None:
        self._environment = environment
        self._answered = 0
        """The number of the first sample for which the function returned a result."""
        self._lists: list[tuple[int, ...]] | None = None
        """The shapes of the lists in the first result that has any."""

    def spec(self, node: Node, given: Any) -> Any:
        samples = self._samples(node.inputs[0])
        spec = self._ask_function(
            node, samples or [nest.map_structure(self._make_up_leaf, given)], given
        )
        if samples and isinstance(node, nodes.Map | nodes.Interleave | nodes.Scan):
            trial = Trial(self._answered, describe_spec(spec), self._lists)
            node.function.notes.trial = trial
        return spec

    def _ask_function(self, node: Node, samples: list[Any], given: Any) -> Any:
        match node:
            case nodes.Map():
                return self._of_map(node, samples, given)
            case nodes.Interleave(_, function):
                plan = partial(self._plan, node.label, function)
                answer = lambda x: spec_of(plan(x), self._environment)  # noqa: E731
                return self._try_samples(f"Dataset.{node.label}: {function}", answer, samples)
            case nodes.Scan(_, initial, function):
                state = copy_unowned(initial.chunk.elements()[0])
                return self._of_scan(state, function, samples, given)
            case nodes.GroupByWindow():
                return self._of_group(node, samples, given)
            case nodes.GroupByReducer():
                return self._of_reducer(node, samples)
            case _:
                raise AssertionError(f"{node.label} is not opaque")

    def _make_up_leaf(self, leaf: Any) -> Any:
        if not isinstance(leaf, DatasetSpec):
            return zeros(leaf)
        element = nest.map_structure(self._make_up_leaf, leaf.element_spec)
        return self._environment.wrap(self._rows(element, leaf.element_spec))

    def _rows(self, element: Any, spec: Any) -> Node:
        """A plan of one sample, with the spec of all elements."""
        rows = nodes.Slices(nodes.Data(Chunk.of([element])))
        rows.keep_spec(spec)
        return rows

    def _window(self, element: Any, spec: Any, certain: bool) -> Node:
        """Like `_rows`, for a window; unless `certain`, its spec counts as found on samples."""
        rows = self._rows(element, spec)
        if certain:
            return rows
        seen = nodes.Map(rows, Function(_identity))
        seen.keep_spec(spec, sampled=True)
        return seen

    def _samples(self, node: Node) -> list[Any]:
        context = Context(self._environment, options=Options(executor="inline"))
        context = replace(context, meters=context.meters.inner())
        found: list[Any] = []
        with closing(open_plan(self._without_buffers(node), None, context)) as stream:
            for _ in range(_TRIED):
                try:
                    found += stream.pull(2 - len(found)).elements()
                except StopIteration:
                    break
                except Exception:  # The next elements will do as samples.
                    continue
                if len(found) == 2:
                    break
        return found

    def _without_buffers(self, node: Node) -> Node:
        """A plan with similar first elements, without buffers, threads, services and files."""
        match node:
            case nodes.Distribute(None, element=element):
                return self._rows(nest.map_structure(self._make_up_leaf, element), element)
            case nodes.Distribute(source) if source is not None:
                return self._without_buffers(source)
            case nodes.Shuffle(source) | nodes.Prefetch(source) | nodes.Cache(source):
                return self._without_buffers(source)
            case nodes.Snapshot(source) | nodes.WithOptions(source):
                return self._without_buffers(source)
            case nodes.Shard(source) if node.shards < 1:  # A hint, which only a worker fills in.
                return self._without_buffers(source)
            case nodes.Filter(source) | nodes.TakeWhile(source):
                return node.with_inputs((nodes.Take(self._without_buffers(source), _TRIED),))
            case _:
                return node.with_inputs(tuple(map(self._without_buffers, node.inputs)))

    def _of_map(self, node: nodes.Map, samples: list[Any], given: Any) -> Any:
        calls = Calls("map", node.function)
        if node.vectorized:
            rows = call_vectorized(calls, Chunk.of(samples), 0)
            leaves = [spec_of_leaf(as_value(column)).unbatch() for column in rows.columns]
            return nest.unflatten(rows.tree, leaves)
        more = () if node.random is None else (generator(node.random, 0, 0),)

        def answer(sample: Any) -> Any:
            return self._spec_of_result(calls.one(sample, 0, *more), calls.where)

        try:
            found = self._try_samples(calls.where, answer, samples)
        except Exception as error:
            error.add_note(_FAILED_ON_SAMPLES)
            raise
        return _relax_by_shorter(found, answer, samples[0], given)

    def _spec_of_result(self, result: Any, where: str, number: int = 0) -> Any:
        try:
            if self._lists is None and holds_list(result):
                self._lists = list_shapes(result)
            return spec_of_element(as_element(result))
        except OpError as error:
            raise unusable_element(where, result, number, error) from None

    def _of_scan(self, state: Any, function: Function, samples: list[Any], given: Any) -> Any:
        found = []
        calls = Calls("scan", function)
        for number, sample in enumerate(samples):
            state, output = calls.plain(number, state, sample)
            state = as_element(state)
            found.append(self._spec_of_result(output, calls.where, number))
        relaxed = self._relax_all(found, f"Dataset.scan: {function}")

        def answer(sample: Any) -> Any:
            return spec_of_element(as_element(calls.plain(len(samples), state, sample)[1]))

        return _relax_by_shorter(relaxed, answer, samples[0], given)

    def _of_group(self, node: nodes.GroupByWindow, samples: list[Any], given: Any) -> Any:
        """The common spec of the windows of all known keys."""
        key, reduce = Calls("group_by_window", node.key), Calls("group_by_window", node.reduce)
        certain = is_certain(node.input)

        def answer(pair: tuple[int, Any]) -> Any:
            window = self._environment.wrap(self._window(pair[1], given, certain))
            made = reduce.plain(0, np.int64(pair[0]), window)
            return spec_of(plan_of("Dataset.group_by_window: reduce_func", made), self._environment)

        pairs = [(key.one(sample, 0), sample) for sample in samples[:1]]
        pairs += [(number, samples[0]) for number in node.keys]
        if not node.keys:
            pairs += [(key.one(sample, 0), sample) for sample in samples[1:]]
        return self._try_samples(reduce.where, answer, pairs)

    def _of_reducer(self, node: nodes.GroupByReducer, samples: list[Any]) -> Any:
        """The common spec after one element and after two, of the key of the first."""
        calls = [
            Calls("group_by_reducer", function)
            for function in (node.key, node.init, node.reduce, node.finalize)
        ]
        key, init, reduce, finalize = calls
        state = as_element(init.plain(0, np.int64(check_key(key.where, key.one(samples[0], 0)))))
        found = []
        for number, sample in enumerate((samples * 2)[:2]):
            state = check_state(reduce.where, state, reduce.plain(number, state, sample))
            found.append(spec_of_element(as_element(finalize.one(copy_unowned(state), number))))
        return self._relax_all(found, finalize.where)

    def _plan(self, label: str, function: Function, sample: Any) -> Node:
        calls = Calls(label, function)
        with seed_scope(0):
            return plan_of(calls.where, calls.one(sample, 0))

    def _try_samples(self, where: str, answer: Callable[[Any], Any], samples: list[Any]) -> Any:
        """The common spec of the results; raises only if the function failed on every sample."""
        found: dict[int, Any] = {}
        errors: list[Exception] = []
        for number, sample in enumerate(samples):
            try:
                found[number] = answer(sample)
            except Exception as error:
                errors.append(error)
        if not found:
            raise errors[0]
        self._answered = min(found)
        return self._relax_all(list(found.values()), where)

    def _relax_all(self, specs: list[Any], where: str) -> Any:
        result = specs[0]
        for number, spec in enumerate(specs[1:], 1):
            result = relax(result, spec, f"{where} for elements 0 and {number}")
        return result


def _has_unknown(spec: Any) -> bool:
    return any(None in (_dims(leaf) or ()) for leaf in nest.flatten(spec)[0])


def _dims(leaf: Any) -> tuple[int | None, ...] | None:
    shape = getattr(leaf, "shape", None)
    return shape.dims if isinstance(shape, TensorShape) else None


def _identity(element: Any) -> Any:
    return element


def _relax_by_shorter(found: Any, answer: Callable[[Any], Any], sample: Any, given: Any) -> Any:
    """Relaxes the spec `found` by the answer for a shorter sample, if a dimension is unknown."""
    if not _has_unknown(given):
        return found
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return relax(found, answer(nest.map_structure(_shorten_leaf, given, sample)))
    except Exception:
        return _guess_spec(found, sample, given)


def _shorten_leaf(spec: Any, leaf: Any) -> Any:
    """A leaf with another size in every dimension that is unknown."""
    dims = _dims(spec)
    if dims is None or None not in dims:
        return leaf
    if isinstance(leaf, Ragged):
        return leaf if dims[0] is not None else leaf[: max(len(leaf) - 1, 0)]
    for axis, size in enumerate(dims):
        if size is None and leaf.shape[axis] > 1:
            leaf = np.take(leaf, range(leaf.shape[axis] - 1), axis)
        elif size is None and leaf.shape[axis] == 1:
            leaf = np.repeat(leaf, 2, axis)
    return leaf


def _guess_spec(found: Any, sample: Any, given: Any) -> Any:
    """Makes every dimension unknown that is as long as an unknown dimension of the input."""
    sizes = set()
    for spec, leaf in zip(nest.flatten(given)[0], nest.flatten(sample)[0], strict=True):
        pairs = zip(_dims(spec) or (), np.shape(leaf), strict=False)
        sizes |= {have for want, have in pairs if want is None}

    def relax_dimensions(spec: Any) -> Any:
        dims = _dims(spec)
        if dims is None or not isinstance(spec, TensorSpec):
            return spec
        return TensorSpec([None if d in sizes else d for d in dims], spec.dtype)

    return nest.map_structure(relax_dimensions, found)
