"""The whole language as lists: what every operator means, written as naively as possible.

`items(plan)` gives what a plan gives, one by one, with `FAULT` in the place of every element that
cannot be made. It shares only the plan's nodes with the engine and, for random orders, the
random numbers.
"""

from collections.abc import Iterator
from fractions import Fraction
from functools import partial
from itertools import chain, count, islice
from math import ceil, floor
from typing import Any

import numpy as np

from penstock.data.dataset import Dataset
from penstock.element.chunk import Chunk
from penstock.engine.permute import block_order, shuffle_index
from penstock.plan import nodes as n
from penstock.plan.seeds import derive, generator
from tests.engine.list_packing import pack_items
from tests.engine.list_values import FAULT, empty, pad_group, parts_of, rows, stack_group

Epoch = tuple[int, ...]
Items = Iterator[Any]
Pairs = Iterator[tuple[int, Any]]
END: Any = object()


def items(plan: n.Node, epoch: Epoch = (0,)) -> Items:
    """The elements of a plan, with FAULT for those that fail."""
    source, *others = [items(part, epoch) for part in plan.inputs] or [iter(())]
    match plan:
        case n.Range(start, stop, step, dtype):
            return iter(np.arange(start, stop, step).astype(dtype.as_numpy_dtype))
        case n.Counter(start, step, dtype):
            return (np.array(start + i * step).astype(dtype.as_numpy_dtype)[()] for i in count())
        case n.Slices(data):
            return iter(data.chunk.elements())
        case n.Random(seed, again):
            return (np.int64(derive(key(seed, epoch, again), i) >> 32) for i in count())
        case n.Choices(weights, seed, again):
            edges = np.cumsum(weights) / sum(weights)
            words = (derive(key(seed, epoch, again), i) for i in count())
            return (np.searchsorted(edges, (word >> 11) * 2.0**-53, "right") for word in words)
        case n.Generator(function, arguments):
            return generate_items(function, arguments)
        case n.TakeWhile(_, function):
            return (item for _, item in filter_items(enumerate(source), function, stop=True))
        case _ if isinstance(plan, ELEMENTWISE):
            return (item for _, item in elementwise(plan, epoch))
        case n.Scan(_, initial, function):
            return scan_items(source, initial.chunk.elements()[0], function)
        case n.Batch(_, size, drop):
            groups = iter(lambda: list(islice(source, size)), [])
            return (
                collate_group(plan, group) for group in groups if len(group) == size or not drop
            )
        case n.Rebatch(_, sizes, drop):
            return rebatch_items(source, sizes, drop)
        case n.Pack():
            return pack_items(plan, source)
        case n.Window():
            return windows(plan, source)
        case n.GroupByWindow():
            return group_items(plan, source, epoch)
        case n.GroupByReducer():
            return reduced_groups(plan, source)
        case n.Shuffle(_, buffer, seed, again) if plan.blocked is not None:
            return shuffle_stream(source, buffer, key(seed, epoch, again))
        case n.Shuffle(_, buffer, seed, again):
            return permute_items(plan, source, buffer, key(seed, epoch, again))
        case n.Repeat(part, times):
            return repeat_part(part, times, epoch)
        case n.Take(_, times):
            return islice(source, times)
        case n.Skip(_, times):
            return islice(source, times, None)
        case n.Shard(_, shards, index):
            return islice(source, index, None, shards)
        case n.Select():
            rows = list(source)
            return (rows[int(position)] for position in others[0])
        case n.Enumerate(_, start):
            return (x if x is FAULT else (np.int64(i), x) for i, x in enumerate(source, start))
        case n.Unique():
            return unique(source)
        case n.AssertCardinality(_, expected):
            return check_cardinality(source, expected)
        case n.Zip(_, tree):
            pairs = zip(source, *others, strict=False)
            return (FAULT if FAULT in pair else tree.unflatten(pair) for pair in pairs)
        case n.Choose(_, _, stop):
            return chosen_from(source, others, stop)
        case n.Mix():
            return mix_parts(plan, epoch)
        case n.Cache():
            return items(plan.input, tuple(0 for _ in epoch))  # Of the first pass.
        case n.Distribute():
            return source
    raise AssertionError(f"the model does not know {plan.label}")


# Operators that compute each element alone


ELEMENTWISE = (
    *(n.Map, n.Filter, n.Interleave, n.Unbatch, n.IgnoreErrors, n.Prefetch, n.WithOptions),
    n.Concatenate,
)


def elementwise(plan: n.Node, epoch: Epoch) -> Pairs:
    """The elements and their numbers; random functions draw by these numbers."""
    number = number_by_origin if comes_from_one(plan) else number_by_count
    source, *others = [number(part, epoch) for part in plan.inputs]
    match plan:
        case n.Map():
            return map_items(plan, source, epoch)
        case n.Filter(_, function):
            return filter_items(source, function, stop=False)
        case n.FlatMap(_, function):
            return interleave_items(source, function, 1, 1, epoch)
        case n.Interleave(_, function, cycle, block):
            return interleave_items(source, function, cycle, block, epoch)
        case n.Unbatch():
            return ((derive(k, i), row) for k, x in source for i, row in enumerate(rows(x)))
        case n.IgnoreErrors():
            return ((number, item) for number, item in source if item is not FAULT)
        case n.Concatenate():
            return chain(source, ((derive(1, number), item) for number, item in others[0]))
    return source


def number_by_origin(plan: n.Node, epoch: Epoch) -> Pairs:
    """Numbers of the source, if each element comes from one with random access; else a count."""
    if plan.blocked is None or not comes_from_one(plan):
        return number_by_count(plan, epoch)
    return elementwise(plan, epoch)


def number_by_count(plan: n.Node, epoch: Epoch) -> Pairs:
    return enumerate(items(plan, epoch))


def comes_from_one(plan: n.Node) -> bool:
    """Whether workers could share it: at most one interleave, and none in concatenated parts."""
    if plan.blocked is None:
        return True
    if isinstance(plan, n.Concatenate) and plan.inputs[0].cardinality == n.INFINITE:
        return comes_from_one(plan.inputs[0])
    alone = isinstance(plan, ELEMENTWISE)
    once = isinstance(plan, n.Concatenate) or (isinstance(plan, n.Interleave) and plan.cycle > 1)
    if once and any(map(in_turns, plan.inputs)):
        return False
    return alone and all(map(comes_from_one, plan.inputs))


def in_turns(plan: n.Node) -> bool:
    if plan.blocked is None:
        return False
    own = isinstance(plan, n.Interleave) and plan.cycle > 1
    return own or any(map(in_turns, plan.inputs))


def key(seed: int, epoch: Epoch, again: bool) -> int:
    return derive(seed, *epoch) if again else derive(seed)


def call(function: Any, *arguments: Any) -> Any:
    if any(argument is FAULT for argument in arguments):
        return FAULT
    try:
        return function.call(*arguments)
    except Exception:
        return FAULT


def generate_items(function: Any, arguments: tuple[Any, ...]) -> Items:
    try:
        yield from map(np.int64, function.call(*arguments))
    except Exception:
        yield FAULT


def map_items(plan: n.Map, source: Pairs, epoch: Epoch) -> Pairs:
    for number, item in source:
        if item is not FAULT and plan.vectorized:
            yield number, rows(call(plan.function, *parts_of(stack_group([item]))))[0]
        elif plan.random is not None:
            random = generator(plan.random, *epoch, number)
            yield number, call(plan.function, *parts_of(item), random)
        else:
            yield number, call(plan.function, *parts_of(item))


def filter_items(source: Pairs, function: Any, stop: bool) -> Pairs:
    for number, item in source:
        passes = call(function, *parts_of(item))
        if passes is FAULT or passes:
            yield number, FAULT if passes is FAULT else item
        elif stop:
            return


def interleave_items(source: Pairs, function: Any, cycle: int, block: int, epoch: Epoch) -> Pairs:
    slots: list[Any] = [None] * cycle
    turn, more = 0, True
    while more or any(slots):
        while slots[turn] is None and more:
            number, item = next(source, (0, END))
            more = item is not END
            if more:
                made = call(function, *parts_of(item))
                slots[turn] = None if made is FAULT else inner(made, number, epoch)
                yield from [(number, FAULT)] if made is FAULT else []
        taken = 0
        while slots[turn] is not None and (taken < block or cycle == 1):
            pair = next(slots[turn], END)
            if pair is END:
                slots[turn] = None
            else:
                taken += pair[1] is not FAULT
                yield pair
        turn = (turn + 1) % cycle


def inner(made: Any, number: int, epoch: Epoch) -> Pairs:
    """A dataset made of element `number`; elements that fail are not counted."""
    given = 0
    for item in items(made.__plan__, (*epoch, number)):
        yield derive(number, given), item
        given += item is not FAULT


def scan_items(source: Items, state: Any, function: Any) -> Items:
    for item in source:
        result = call(function, state, item)
        if result is not FAULT:
            state, result = result
        yield result


def collate_group(plan: n.Batch, group: list[Any]) -> Any:
    if isinstance(plan, n.PaddedBatch):
        return pad_group(group, plan.shapes, plan.values)
    if isinstance(plan, n.RaggedBatch) and FAULT not in group and np.ndim(group[0]):
        return group
    return stack_group(group)


def rebatch_items(source: Items, sizes: tuple[int, ...], drop: bool) -> Items:
    """Empty batches follow the row before; a fault loses the rows that were waiting for a batch."""
    turn, group = 0, []
    for item in source:
        group = [] if item is FAULT else [*group, item]
        if item is FAULT:
            yield FAULT
            continue
        while sizes[turn] == 0:  # Before the first row.
            yield empty(item)
            turn = (turn + 1) % len(sizes)
        if len(group) == sizes[turn]:
            yield stack_group(group)
            turn, group = (turn + 1) % len(sizes), []
        while sizes[turn] == 0:
            yield empty(item)
            turn = (turn + 1) % len(sizes)
    if group and not drop:
        yield stack_group(group)


def dataset(held: list[Any]) -> Dataset:
    return Dataset(n.Slices(n.Data(Chunk.of(held))))


def windows(plan: n.Window, source: Items) -> Items:
    held: list[Any] = []
    span = (plan.size - 1) * plan.stride + 1
    for start in count(step=plan.shift):
        held += islice(source, max(0, start + span - len(held)))
        if start >= len(held) or (plan.drop_remainder and start + span > len(held)):
            return
        members = held[start : start + span : plan.stride]
        yield FAULT if FAULT in members else leaf_datasets(members)


def leaf_datasets(members: list[Any]) -> Any:
    """A dataset of every leaf, in the structure of the elements."""
    first = members[0]
    if isinstance(first, tuple):
        return tuple(leaf_datasets(list(column)) for column in zip(*members, strict=True))
    if isinstance(first, dict):
        return {name: leaf_datasets([member[name] for member in members]) for name in first}
    return dataset(members)


def group_items(plan: n.GroupByWindow, source: Items, epoch: Epoch) -> Items:
    groups: dict[int, list[Any]] = {}
    numbers = count()

    def reduce_group(name: int) -> Items:
        made = call(plan.reduce, np.int64(name), dataset(groups.pop(name)))
        if made is FAULT:
            return iter([FAULT])
        return items(made.__plan__, (*epoch, next(numbers)))

    for item in source:
        name = call(plan.key, *parts_of(item))
        if name is FAULT:
            yield FAULT
            continue
        groups.setdefault(int(name), []).append(item)
        size = plan.size if isinstance(plan.size, int) else plan.size.call(name)
        if len(groups[int(name)]) >= size:
            yield from reduce_group(int(name))
    for name in sorted(groups):
        yield from reduce_group(name)


def reduced_groups(plan: n.GroupByReducer, source: Items) -> Items:
    states: dict[int, Any] = {}
    for item in source:
        name = call(plan.key, *parts_of(item))
        if name is FAULT:
            yield FAULT
            continue
        before = states.get(int(name)) or call(plan.init, np.int64(name))
        after = call(plan.reduce, before, item)
        if after is FAULT:
            yield FAULT
        else:
            states[int(name)] = after
    for name in sorted(states):
        yield call(plan.finalize, *parts_of(states[name]))


def shuffle_stream(source: Items, buffer: int, seed: int) -> Items:
    """A shuffle over a stream: the next element is drawn from a buffer that is kept full."""
    held: list[Any] = []
    for number in count():
        while len(held) < buffer and (item := next(source, END)) is not END:
            yield from [FAULT] if item is FAULT else []
            held += [] if item is FAULT else [item]
        if not held:
            return
        place = (derive(seed, number) >> 1) % len(held)
        yield held[place]
        last = held.pop()
        if place < len(held):
            held[place] = last


def permute_items(plan: n.Shuffle, source: Items, buffer: int, seed: int) -> Items:
    """A shuffle over random access: a window over the numbers of the elements."""
    length = plan.cardinality
    find = partial(shuffle_index, length=max(length, 0) or None, buffer=buffer, key=seed)
    if isinstance(plan, n.ShuffleBlocks):
        find = block_order(plan, seed).elements
    known: list[Any] = list(source) if length >= 0 else []
    for position in range(length) if length >= 0 else count():
        wanted = int(find(np.array([position]))[0])
        known += islice(source, max(0, wanted + 1 - len(known)))
        yield known[wanted]


def repeat_part(part: n.Node, times: int, epoch: Epoch) -> Items:
    for number in range(times) if times >= 0 else count():
        item = END
        for item in items(part, (*epoch, number)):
            yield item
        if item is END and times < 0:
            return


def unique(source: Items) -> Items:
    seen = set()
    for item in source:
        if item is FAULT or item not in seen:
            yield item
        if item is not FAULT:
            seen.add(item)


def check_cardinality(source: Items, expected: int) -> Items:
    number = 0
    for number, item in enumerate(source, 1):
        yield item if number <= expected or expected < 0 else FAULT
        if number > expected >= 0:
            return
    if number < expected:
        yield FAULT


def chosen_from(choices: Items, parts: list[Items], stop: bool) -> Items:
    left = set(range(len(parts)))
    for choice in choices:
        if choice is FAULT or not 0 <= choice < len(parts):
            yield FAULT
        elif choice in left:
            item = next(parts[int(choice)], END)
            if item is END and (stop or left == {choice}):
                return
            left -= {choice} if item is END else set()
            yield from [] if item is END else [item]


def mix_parts(plan: n.Mix, epoch: Epoch) -> Items:
    """Gives the next element of the part whose turn ends first, among those whose turn has begun.

    Turn m of a part is from m / share to (m + 1) / share, in whole draws.
    """
    weights = [Fraction(str(weight)) for weight in plan.weights]
    parts = [
        repeat_part(part, -1, epoch) if end == "repeat" else items(part, epoch)
        for part, end in zip(plan.parts, plan.on_end, strict=True)
    ]
    while any(weights):
        shares = [weight / sum(weights) for weight in weights]
        counts = [0] * len(parts)
        for now in count():
            turns = [
                (ceil((m + 1) / share), number)
                for number, (m, share) in enumerate(zip(counts, shares, strict=True))
                if share and floor(m / share) <= now
            ]
            number = min(turns)[1]
            item = next(parts[number], END)
            if item is END:
                break
            counts[number] += 1
            yield item
        if plan.on_end[number] == "stop":
            return
        yield from [FAULT] if plan.on_end[number] == "repeat" else []
        weights[number] = Fraction(0)
