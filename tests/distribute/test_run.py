"""One function, once per replica: order, meetings, and what happens when one of them fails."""

import contextvars
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
import pytest
import torch

import penstock as tf
from penstock.distribute import MirroredStrategy, OneDeviceStrategy, PerReplica, get_replica_context
from penstock.errors import (
    DisagreementError,
    FailedPreconditionError,
    InvalidArgumentError,
    InvalidTypeError,
)


def build_strategy(count: int) -> MirroredStrategy:
    return MirroredStrategy([f"CPU:{i}" for i in range(count)])


def number() -> int:
    replica = get_replica_context()
    assert replica is not None
    return replica.replica_id_in_sync_group


def merge(function: Callable[..., Any] = lambda strategy: None, *args: Any, **kwargs: Any) -> Any:
    replica = get_replica_context()
    assert replica is not None
    return replica.merge_call(function, args, kwargs)


def replica_threads() -> list[threading.Thread]:
    return [one for one in threading.enumerate() if one.name == "penstock-replica"]


def busy_strands() -> int:
    """The number of replicas that are blocked in threads of their own."""
    return sum(
        any(frame.name == "_body" for frame in traceback.extract_stack(stack))
        for stack in sys._current_frames().values()
    )


def test_replicas_run_in_order_in_the_callers_thread() -> None:
    log: list[Any] = []
    before = len(replica_threads())
    build_strategy(3).run(lambda: log.append((number(), threading.get_ident())))
    assert log == [(i, threading.get_ident()) for i in range(3)]
    assert len(replica_threads()) == before


def test_arguments_arrive_as_each_replicas_own() -> None:
    strategy = build_strategy(2)
    pair, cache = PerReplica((1, 2)), {"kept": []}  # type: ignore[var-annotated]

    def step(x: Any, tree: Any, *, scale: Any, cache: Any) -> Any:
        cache["kept"].append(x)
        return x * scale, tree["b"][0]

    result = strategy.run(
        step, args=[pair, {"b": [pair]}], kwargs={"scale": PerReplica((10, 100)), "cache": cache}
    )
    assert result[0].values == (10, 200)
    assert result[1].values == (1, 2)
    assert cache == {"kept": [1, 2]}


def test_one_replica_is_not_wrapped() -> None:
    for strategy in (build_strategy(1), OneDeviceStrategy("CPU:3"), tf.distribute.get_strategy()):
        assert strategy.run(lambda x: (x, [1.5]), args=(2,)) == (2, [1.5])


def test_results_that_differ_in_structure_are_refused() -> None:
    with pytest.raises(DisagreementError, match="Strategy.run: the replicas returned different"):
        build_strategy(2).run(lambda: (1,) if number() else 1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"fn": 3}, "Strategy.run: needs a function to call, got 3"),
        ({"args": 3}, r"Strategy.run: args must be a tuple or list, got int; .* args=\(value,\)"),
        ({"args": {"x": 1}}, "Strategy.run: args must be a tuple or list, got dict"),
        ({"kwargs": [1]}, "Strategy.run: kwargs must be a dict or None, got list"),
    ],
)
def test_arguments_are_checked(arguments: dict[str, Any], message: str) -> None:
    for strategy in (build_strategy(2), tf.distribute.get_strategy()):
        with pytest.raises(InvalidTypeError, match=message) as caught:
            strategy.run(**{"fn": lambda: 1} | arguments)
        assert isinstance(caught.value, ValueError) is ("args" in arguments)


def test_values_of_another_strategy_are_refused() -> None:
    value = build_strategy(2).run(number)
    message = "Strategy.run: the value has 2 replicas but this strategy has 3"
    with pytest.raises(InvalidArgumentError, match=message):
        build_strategy(3).run(lambda x: x, args=(value,))


def test_compiling_needs_jax() -> None:
    message = "Strategy.run: jit=True needs backend='jax', but this strategy has 'numpy'"
    for strategy in (build_strategy(2), tf.distribute.get_strategy()):
        with pytest.raises(InvalidArgumentError, match=message):
            strategy.run(lambda: 1, jit=True)


@pytest.mark.parametrize("call", ["run", "reduce", "gather", "scope"])
def test_nothing_for_all_replicas_inside_of_one(call: str) -> None:
    strategy = build_strategy(2)
    calls = {
        "run": lambda: strategy.run(lambda: 1),
        "reduce": lambda: strategy.reduce("SUM", 1, None),
        "gather": lambda: strategy.gather(1, 0),
        "scope": lambda: strategy.scope().__enter__(),
    }
    message = f"Strategy.{call}: called inside Strategy.run, as replica 0; call it outside, or"
    with pytest.raises(FailedPreconditionError, match=message):
        strategy.run(calls[call])


def test_the_default_strategy_runs_inside_of_itself() -> None:
    default = tf.distribute.get_strategy()
    assert default.run(lambda: default.run(lambda: default.reduce("SUM", 2, None))) == 2


def test_replicas_meet_and_continue_in_order() -> None:
    log: list[Any] = []

    def step() -> None:
        for turn in range(2):
            log.append(f"pre{number()}")
            merge(lambda strategy, turn: log.append(f"merge{turn}"), turn)
        log.append(f"post{number()}")

    build_strategy(3).run(step)
    first, second = ["pre0", "pre1", "pre2"], ["post0", "post1", "post2"]
    assert log == [*first, "merge0", *first, "merge1", *second]


def test_what_the_merge_function_sees() -> None:
    strategy = build_strategy(2)
    thread = threading.get_ident()

    def merge_values(given: Any, x: Any, same: Any, *, k: Any) -> Any:
        assert given is strategy
        assert threading.get_ident() == thread
        assert tf.distribute.in_cross_replica_context()
        assert tf.distribute.get_strategy() is strategy
        assert x["a"].values == (0.5, 1.5)
        assert same == 7
        assert k.values == ("k0", "k1")
        return {"sum": strategy.reduce("SUM", x["a"], None), "own": x["a"], "same": "s"}

    def step() -> Any:
        got = merge(merge_values, {"a": number() + 0.5}, 7, k=f"k{number()}")
        assert got == {"sum": 2.0, "own": number() + 0.5, "same": "s"}
        return got["own"]

    assert strategy.run(step).values == (0.5, 1.5)


def test_a_run_inside_of_a_merge_function() -> None:
    strategy = build_strategy(2)

    def inner() -> Any:
        return merge(lambda strategy, x: strategy.reduce("SUM", x, None), np.int64(number() + 1))

    def step() -> Any:
        return merge(lambda strategy: strategy.run(inner))

    assert strategy.run(step) == 3


def test_one_replica_merges_alone() -> None:
    for strategy in (build_strategy(1), OneDeviceStrategy("CPU:0")):
        assert strategy.run(lambda: merge(lambda s, x: x + 1, 1)) == 2
        with pytest.raises(ZeroDivisionError, match="division"):
            strategy.run(lambda: merge(lambda s: 1 // 0))


def test_merge_arguments_must_have_one_structure() -> None:
    message = (
        r"merge_call: the replicas passed different structures: tuple of 0 from replica 0, tup"
    )
    with pytest.raises(DisagreementError, match=message):
        build_strategy(2).run(lambda: merge(lambda s, *a: 1, *range(number())))


def test_merge_results_must_be_this_strategys() -> None:
    message = "ReplicaContext.merge_call: the value has 3 replicas but this strategy has 2"
    with pytest.raises(InvalidArgumentError, match=message):
        build_strategy(2).run(lambda: merge(lambda s: PerReplica((1, 2, 3))))


@pytest.mark.parametrize("failing", [0, 1, 2])
def test_a_failure_comes_out_once_and_names_the_replica(failing: int) -> None:
    log: list[int] = []

    def step() -> None:
        log.append(number())
        if number() == failing:
            raise KeyError("gone")

    with pytest.raises(KeyError, match="gone") as caught:
        build_strategy(3).run(step)
    assert caught.value.__notes__ == [f"in replica {failing} of 3 (CPU:{failing})"]
    assert log == list(range(failing + 1))
    assert caught.traceback[-1].name == "step"
    assert build_strategy(2).run(number).values == (0, 1)


@pytest.mark.parametrize("failing", [0, 1, 2])
@pytest.mark.parametrize("after", [False, True])
def test_a_failure_around_a_meeting_ends_all_replicas(failing: int, after: bool) -> None:
    ended: list[int] = []

    def step() -> None:
        try:
            if number() == failing and not after:
                raise KeyError("gone")
            merge()
            if number() == failing:
                raise KeyError("gone")
            merge()
        finally:
            ended.append(number())

    with pytest.raises(KeyError, match="gone") as caught:
        build_strategy(3).run(step)
    assert caught.value.__notes__ == [f"in replica {failing} of 3 (CPU:{failing})"]
    assert caught.traceback[-1].name == "step"
    started = [0] if failing == 0 and not after else range(3 if after else failing + 1)
    assert sorted(ended) == list(started)
    assert busy_strands() == 0


def test_the_lowest_replica_fails_first() -> None:
    def step() -> None:
        merge()
        raise RuntimeError(f"replica {number()}")

    with pytest.raises(RuntimeError, match="replica 0"):
        build_strategy(2).run(step)
    assert busy_strands() == 0


def test_a_failing_merge_function_ends_all_replicas() -> None:
    ended: list[int] = []

    def step() -> None:
        try:
            merge(lambda strategy: 1 // 0)
        except Exception:
            ended.append(-1)  # This replica did not fail, so it must not handle the failure.
        finally:
            ended.append(number())

    with pytest.raises(ZeroDivisionError, match="division") as caught:
        build_strategy(2).run(step)
    assert caught.value.__notes__ == ["in merge_call, for all 2 replicas"]
    assert ended == [0, 1]
    assert busy_strands() == 0


def test_a_replica_cannot_swallow_the_failure_of_another() -> None:
    log: list[str] = []

    def step() -> Any:
        if number() == 1:
            raise KeyError("gone")
        for _ in range(2):
            try:
                merge()
            except BaseException as error:
                log.append(type(error).__name__)
        return "fine"

    with pytest.raises(KeyError, match="gone"):
        build_strategy(3).run(step)
    assert log == ["Unwind", "Unwind"]

    def late() -> Any:
        try:
            merge()
            merge()
        except BaseException:
            log.append(f"swallowed by {number()}")
        if number() == 0:
            raise KeyError("mine")

    log.clear()
    with pytest.raises(ZeroDivisionError, match="division"):
        build_strategy(2).run(lambda: (late(), 1) if number() == 0 else (merge(), 1 // 0))
    assert log == ["swallowed by 0"]
    assert busy_strands() == 0


def test_a_waiting_replica_that_swallows_the_end_still_ends() -> None:
    log: list[str] = []

    def step() -> None:
        if number() == 0:
            merge()
            raise KeyError("gone")
        merge()
        for _ in range(3):
            try:
                merge()
            except BaseException as error:
                log.append(type(error).__name__)
        merge()

    with pytest.raises(KeyError, match="gone"):
        build_strategy(2).run(lambda: (step(), merge()))
    assert busy_strands() == 0
    assert log == []  # Replica 1 waited at its first merge_call, and was ended there.

    def stubborn() -> None:
        merge()
        if number() == 0:
            merge(lambda strategy: 1 // 0)
        for _ in range(3):
            try:
                merge(lambda strategy: 1 // 0)
            except BaseException as error:
                log.append(type(error).__name__)

    with pytest.raises(ZeroDivisionError, match="division"):
        build_strategy(2).run(stubborn)
    assert log == ["Unwind"] * 3
    assert busy_strands() == 0


@pytest.mark.parametrize(
    ("there", "message"),
    [
        ([0], "replica 0 called it, but replicas 1, 2 returned without calling it; every repl"),
        ([0, 2], "replicas 0, 2 called it, but replica 1 returned without"),
        ([1, 2], "replica 1 called it, but replica 0 returned without"),
        ([2], "replica 2 called it, but replicas 0, 1 returned without"),
    ],
)
def test_a_meeting_that_some_miss(there: list[int], message: str) -> None:
    with pytest.raises(FailedPreconditionError, match=f"ReplicaContext.merge_call: {message}"):
        build_strategy(3).run(lambda: merge() if number() in there else None)
    assert busy_strands() == 0


@pytest.mark.parametrize(
    ("times", "message"),
    [
        ([1, 2], "replica 1 called it, but replica 0 returned without"),
        ([2, 1], "replica 0 called it, but replica 1 returned without"),
    ],
)
def test_meetings_must_be_equally_many(times: list[int], message: str) -> None:
    with pytest.raises(FailedPreconditionError, match=f"ReplicaContext.merge_call: {message}"):
        build_strategy(2).run(lambda: [merge() for _ in range(times[number()])])
    assert busy_strands() == 0


@pytest.fixture
def press_control_c() -> Iterator[Callable[[], None]]:
    """Interrupts the main thread, once; a signal just before it blocks would go unnoticed."""
    noticed = threading.Event()

    def notice(*_: Any) -> None:
        if not noticed.is_set():
            noticed.set()
            raise KeyboardInterrupt

    def press() -> None:
        main = threading.main_thread().ident
        assert main is not None
        while not noticed.is_set():
            signal.pthread_kill(main, signal.SIGINT)
            noticed.wait(0.01)

    before = signal.signal(signal.SIGINT, notice)
    yield press
    signal.signal(signal.SIGINT, before)


def test_an_interrupt_ends_the_replicas_that_wait(press_control_c: Callable[[], None]) -> None:
    ended: list[int] = []

    def step() -> None:
        try:
            merge(lambda strategy: press_control_c())
            merge()
        finally:
            ended.append(number())

    with pytest.raises(KeyboardInterrupt):
        build_strategy(3).run(step)
    assert sorted(ended) == [0, 1, 2]
    assert busy_strands() == 0


def test_an_interrupt_leaves_a_running_replica_to_end_by_itself(
    press_control_c: Callable[[], None],
) -> None:
    go_on, over = threading.Event(), threading.Event()
    seen: list[str] = []

    def step() -> None:
        if number() == 0:
            merge()
        try:
            press_control_c()
            go_on.wait()
            merge()
        except BaseException as error:
            seen.append(type(error).__name__)
        finally:
            over.set()

    with pytest.raises(KeyboardInterrupt):
        build_strategy(2).run(step)
    go_on.set()
    over.wait()
    assert seen == ["Unwind"]


def test_context_variables_are_those_of_the_caller() -> None:
    variable = contextvars.ContextVar("variable", default="nothing")
    variable.set("caller")

    def step() -> Any:
        mine = variable.get()
        variable.set(f"replica {number()}")
        merge()
        return mine, variable.get()

    def run_isolated() -> Any:
        return build_strategy(3).run(step)

    before, after = contextvars.copy_context().run(run_isolated)
    assert before == "caller"
    assert after.values == ("replica 0", "replica 1", "replica 2")


def test_threads_are_used_again() -> None:
    strategy = build_strategy(2)
    for _ in range(3):
        strategy.run(merge)
    before = {thread.ident for thread in replica_threads()}
    for _ in range(20):
        strategy.run(merge)
    assert len({thread.ident for thread in replica_threads()} - before) <= 2
    assert all(thread.daemon for thread in replica_threads())


def test_several_callers_at_once() -> None:
    strategy = build_strategy(2)
    results: list[Any] = []
    together = threading.Barrier(4)

    def call(k: int) -> None:
        together.wait()
        for _ in range(20):
            total = strategy.run(
                lambda: get_replica_context().all_reduce("SUM", np.int64(k + number()))  # type: ignore[union-attr]
            )
            results.append((k, total.values))

    threads = [threading.Thread(target=call, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(results) == sorted((k, (2 * k + 1,) * 2) for k in range(4) for _ in range(20))


FORKING = """
import os
from penstock.distribute import MirroredStrategy, get_replica_context

def step():
    return get_replica_context().merge_call(lambda strategy: 5)

strategy = MirroredStrategy(["CPU:0", "CPU:1"])
assert strategy.run(step) == 5
child = os.fork()
if child == 0:
    os._exit(0 if strategy.run(step) == 5 else 1)
assert os.waitpid(child, 0)[1] == 0
"""


def test_a_forked_process_has_threads_of_its_own() -> None:
    program = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", FORKING]
    done = subprocess.run(program, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_all_reduce_of_trees_and_numbers() -> None:
    def step() -> Any:
        replica = get_replica_context()
        assert replica is not None
        i = replica.replica_id_in_sync_group
        total = replica.all_reduce("SUM", {"a": np.float32(i + 1), "b": [2.0]})
        mean = replica.all_reduce(tf.distribute.ReduceOp.MEAN, np.array([i, 10]))
        return total, mean

    total, mean = build_strategy(2).run(step)
    assert total["a"].values == (3.0, 3.0)
    assert total["a"].values[0].dtype == np.float32
    assert total["b"][0].values == (4.0, 4.0)
    assert [one.tolist() for one in mean.values] == [[0.5, 10.0]] * 2


def test_all_reduce_gives_every_replica_memory_of_its_own() -> None:
    def step() -> Any:
        replica = get_replica_context()
        assert replica is not None
        mine = replica.all_reduce("SUM", np.ones(2))
        mine += number()
        return mine

    assert [one.tolist() for one in build_strategy(2).run(step).values] == [[2.0, 2.0], [3.0, 3.0]]


def test_all_gather() -> None:
    def step(x: Any, axis: Any) -> Any:
        replica = get_replica_context()
        assert replica is not None
        return replica.all_gather({"x": x}, axis)["x"]

    strategy = build_strategy(2)
    rows = PerReplica((np.array([[1, 2]]), np.array([[5, 6]])))
    assert strategy.run(step, (rows, 0)).values[1].tolist() == [[1, 2], [5, 6]]
    assert strategy.run(step, (rows, 1)).values[0].tolist() == [[1, 2, 5, 6]]
    same = np.array([1])
    assert strategy.run(step, (same, 0)).values[0].tolist() == [1, 1]
    with pytest.raises(InvalidArgumentError, match="all_gather: axis must be an int, got None"):
        strategy.run(step, (rows, None))
    with pytest.raises(
        InvalidArgumentError, match="all_gather: axis 0 does not fit single numbers"
    ):
        strategy.run(step, (np.int64(1), 0))
    with pytest.raises(InvalidArgumentError, match="all_reduce: reduce_op must be 'SUM' or 'MEAN'"):
        strategy.run(lambda: get_replica_context().all_reduce("MAX", 1))  # type: ignore[union-attr]


def test_all_reduce_on_torch_ends_gradients() -> None:
    strategy = MirroredStrategy(["CPU:0", "CPU:1"], backend="torch")
    weight = torch.tensor(2.0, requires_grad=True)

    def step() -> Any:
        replica = get_replica_context()
        assert replica is not None
        scaled = weight * (number() + 1)
        total = replica.all_reduce("SUM", scaled)
        rows = replica.all_gather(scaled[None], 0)
        assert not total.requires_grad
        assert not rows.requires_grad
        (gradient,) = torch.autograd.grad(scaled * total, weight)
        return gradient

    assert [one.item() for one in strategy.run(step).values] == [6.0, 12.0]


@pytest.mark.parametrize("call", ["all_reduce", "all_gather", "merge_call"])
@pytest.mark.parametrize("transform", [jax.grad, jax.jit])
def test_replicas_cannot_meet_inside_a_transformation_of_jax(call: str, transform: Any) -> None:
    strategy = MirroredStrategy(["CPU:0", "CPU:1"], backend="jax")
    calls: dict[str, Callable[[Any, Any], Any]] = {
        "all_reduce": lambda replica, x: replica.all_reduce("SUM", {"x": x})["x"],
        "all_gather": lambda replica, x: replica.all_gather(x[None], 0).sum(),
        "merge_call": lambda replica, x: replica.merge_call(lambda _, x: x, (x,)),
    }
    message = f"ReplicaContext.{call}: called inside jax.grad, jax.jit .*Strategy.run.*jit=True"
    with pytest.raises(FailedPreconditionError, match=message):
        strategy.run(lambda: transform(lambda x: calls[call](get_replica_context(), x))(1.0))


def test_one_replica_may_meet_itself_inside_a_transformation_of_jax() -> None:
    strategy = OneDeviceStrategy("CPU:0", backend="jax")
    loss = lambda x: get_replica_context().all_reduce("SUM", 2 * x)  # type: ignore[union-attr]  # noqa: E731
    assert strategy.run(lambda: jax.grad(loss)(1.0)) == 2.0


@pytest.mark.parametrize("call", ["all_reduce", "all_gather"])
def test_nothing_cannot_be_reduced(call: str) -> None:
    def step(tree: Any) -> Any:
        replica: Any = get_replica_context()
        return (
            replica.all_reduce("SUM", tree) if call == "all_reduce" else replica.all_gather(tree, 0)
        )

    row = np.ones(1)
    for tree, place in (
        (
            {"a": row, "b": [row, None]},
            r"value\['b'\]\[1\] is None, and needs numbers; leave it out",
        ),
        (None, "value is None, and needs"),
        ({"a": PerReplica((row, None))}, r"value\['a'\] is None in replica 1, and needs"),
    ):
        with pytest.raises(InvalidArgumentError, match=f"ReplicaContext.{call}: {place}"):
            build_strategy(2).run(step, args=(tree,))


def test_what_the_callers_thread_has_set_holds_for_all_replicas() -> None:
    strategy = MirroredStrategy(["CPU:0", "CPU:1"], backend="torch")
    with torch.no_grad():
        result = strategy.run(lambda: (merge(), torch.is_grad_enabled())[1])
    assert result is False


def test_what_one_replica_sets_for_itself_does_not_reach_other_replicas() -> None:
    strategy = MirroredStrategy(["CPU:0", "CPU:1", "CPU:2"], backend="torch")

    def step() -> Any:
        before = torch.is_grad_enabled()
        with torch.no_grad():
            merge()
        return before, torch.is_grad_enabled()

    assert strategy.run(step) == (True, True)


def test_what_is_given_to_merge_call_is_checked() -> None:
    calls: list[tuple[Callable[[Any], Any], str]] = [
        (lambda r: r.merge_call(print, 5), "args must be a tuple or list, got int; for one arg"),
        (lambda r: r.merge_call(print, (1,), 5), "kwargs must be a dict or None, got int"),
    ]
    for call, message in calls:
        with pytest.raises(InvalidTypeError, match=f"ReplicaContext.merge_call: {message}"):
            build_strategy(2).run(lambda call=call: call(get_replica_context()))


def test_options_of_run_are_checked() -> None:
    message = "Strategy.run: options must be a RunOptions or None, got 3; arguments of the function"
    for strategy in (build_strategy(2), tf.distribute.get_strategy()):
        with pytest.raises(InvalidTypeError, match=message):
            strategy.run(lambda: 1, options=3)
