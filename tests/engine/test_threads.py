"""Threads: none is left behind, order is kept, calls run at once, nothing runs too far ahead.

Functions meet at barriers and wait for events, each with a bound that only a broken engine reaches.
"""

import gc
import itertools
import json
import signal
import sys
import threading
import weakref
from contextlib import suppress

import numpy as np
import pytest

from penstock import TensorSpec, int64
from penstock.data.dataset import ENVIRONMENT, Dataset
from penstock.data.iterator import Iterator
from penstock.element import nest
from penstock.element.chunk import Chunk
from penstock.engine.contract import Stream
from penstock.engine.prefetch import PrefetchStream
from penstock.engine.tuning import Budget, Depth
from penstock.errors import InvalidArgumentError
from penstock.plan import nodes as n
from penstock.plan.optimize import prepare
from penstock.plan.options import Options
from tests.effort import spread
from tests.engine.example_plans import filter_plan, interleave_plan, map_plan, numbers, rows
from tests.programs import run_text

BOUND = 30.0


def fails_on_9(x):
    if x == 9:
        raise ValueError("9 is not wanted")
    return x


def prefetched_some(x):
    return Dataset(n.Prefetch(map_plan(numbers(4), lambda y: x * 10 + y, parallel=2), 2))


PLANS = {
    "prefetch": lambda s: n.Prefetch(s, 2),
    "prefetch of prefetch": lambda s: n.Prefetch(n.Batch(n.Prefetch(s, 2), 1), 2),
    "parallel map": lambda s: map_plan(s, abs, parallel=3),
    "autotuned map": lambda s: n.Prefetch(map_plan(s, abs, parallel=-1), -1),
    "unordered map": lambda s: map_plan(s, abs, parallel=3, deterministic=False),
    "interleave": lambda s: interleave_plan(s, prefetched_some, 3, 2, 2),
    "unordered interleave": lambda s: interleave_plan(s, prefetched_some, 3, 2, 2, False),
    "nested": lambda s: n.Prefetch(
        map_plan(
            interleave_plan(map_plan(s, abs, parallel=2), prefetched_some, 2, 1, 2), abs, parallel=2
        ),
        3,
    ),
    "repeat": lambda s: n.Repeat(n.Prefetch(map_plan(filter_plan(s), abs, parallel=2), 2), 2),
    "cache": lambda s: n.Cache(n.Prefetch(s, 2), "", n.Store()),
}
each_plan = pytest.mark.parametrize("make", PLANS.values(), ids=PLANS)


def iterate(plan: n.Node) -> Iterator:
    return Iterator(plan, ENVIRONMENT)


FOREIGN: set[threading.Thread] = set()


def ours() -> list[threading.Thread]:
    """The engine's threads that this test has started."""
    threads = [thread for thread in threading.enumerate() if thread not in FOREIGN]
    return [thread for thread in threads if thread.name.startswith("penstock")]


@pytest.fixture(autouse=True)
def _no_thread_is_left():
    """Waits until the threads of a test have ended, and ignores threads of other tests."""
    FOREIGN.clear()
    FOREIGN.update(threading.enumerate())
    yield
    gc.collect()
    assert_no_threads()


def assert_no_threads() -> None:
    """Waits until all threads have ended; a thread may have started another one."""
    while threads := ours():
        with suppress(RuntimeError):  # Another thread has not started it yet.
            threads[0].join(BOUND)
            assert not threads[0].is_alive()


@each_plan
def test_no_thread_before_the_first_element(make):
    iterator = iterate(make(numbers(20)))
    assert not ours()
    iterator.close()


@each_plan
def test_threads_end_with_the_data(make):
    iterator = iterate(make(numbers(20)))
    assert len(list(iterator)) >= 20
    assert_no_threads()


@each_plan
def test_threads_end_when_the_iterator_is_closed(make):
    iterator = iterate(make(n.Repeat(numbers(20))))
    next(iterator)
    assert ours()
    iterator.close()
    assert_no_threads()
    with pytest.raises(StopIteration):
        next(iterator)
    iterator.close()


@each_plan
def test_threads_end_when_the_iterator_is_garbage(make):
    iterator = iterate(make(n.Repeat(numbers(20))))
    next(iterator)
    assert ours()
    gone = weakref.ref(iterator)
    del iterator
    gc.collect()
    assert gone() is None
    assert_no_threads()


@each_plan
def test_threads_end_after_a_failure(make):
    iterator = iterate(make(map_plan(numbers(20), fails_on_9)))
    with pytest.raises(InvalidArgumentError, match="9 is not wanted"):
        list(iterator)
    iterator.close()
    assert_no_threads()


@pytest.mark.parametrize("name", ["prefetch", "parallel map", "unordered map"])
def test_a_failure_ends_threads_until_the_next_pull(name):
    iterator = iterate(PLANS[name](map_plan(numbers(20), fails_on_9)))
    found = []
    with pytest.raises(InvalidArgumentError, match="9 is not wanted"):
        found.extend(iterator)
    assert_no_threads()
    assert sorted([*found, *iterator]) == [x for x in range(20) if x != 9]


@each_plan
def test_an_interrupted_loop_leaves_no_thread_after_close(make):
    iterator = iterate(make(n.Repeat(numbers(20))))
    with pytest.raises(KeyboardInterrupt):
        interrupt_reading(iterator)
    assert_no_threads()


def interrupt_reading(iterator):
    with iterator:
        for _ in iterator:
            raise KeyboardInterrupt


@pytest.fixture
def interrupted_once():
    """An event that is set when Ctrl-C has been noticed; later signals do nothing."""
    noticed = threading.Event()

    def notice(*_):
        if not noticed.is_set():
            noticed.set()
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, notice)
    yield noticed
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("name", ["prefetch", "parallel map"])
def test_waiting_can_be_interrupted_and_nothing_is_lost(name, interrupted_once):
    signal.siginterrupt(signal.SIGINT, False)  # As polars does when it is imported.
    inside, go_on, waited = threading.Event(), threading.Event(), []

    def wait_at_3(x):
        if x == 3:
            inside.set()
            waited.append(go_on.wait(BOUND))
        return x

    def interrupt():
        inside.wait(BOUND)
        # Python may miss one signal, in the moment before it begins to wait.
        while not interrupted_once.wait(0.01):
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    source = n.Prefetch(map_plan(numbers(6), wait_at_3, parallel=2), 1)
    iterator = iterate(source if name == "prefetch" else source.input)
    killer = threading.Thread(target=interrupt)
    killer.start()
    found = []
    with pytest.raises(KeyboardInterrupt):
        found.extend(iterator)
    killer.join()
    go_on.set()
    assert [*found, *iterator] == list(range(6))
    assert all(waited)


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("name", ["prefetch", "parallel map", "unordered map", "nested"])
def test_every_exception_of_a_function_reaches_the_consumer_once(name, kind):
    raised = threading.Event()

    def interrupted_at_7(x):
        if x == 7 and not raised.is_set():
            raised.set()
            raise kind
        return x

    plan = PLANS[name](map_plan(numbers(12), interrupted_at_7))
    expected = sorted(map(int, iterate(PLANS[name](numbers(12)))))
    iterator = iterate(plan)
    found = []
    with pytest.raises(kind):
        found.extend(iterator)
    assert sorted(map(int, [*found, *iterator])) == expected


def test_order_is_kept_though_the_first_call_ends_last():
    last = threading.Event()

    def first_waits_for_last(x):
        if x == 0:
            assert last.wait(BOUND)
        if x == 3:
            last.set()
        return x

    plan = map_plan(numbers(12), first_waits_for_last, parallel=4)
    assert list(iterate(plan)) == list(range(12))


@pytest.mark.parametrize("at_once", [2, 5])
def test_calls_run_at_once(at_once):
    barrier = threading.Barrier(at_once)

    def meet(x):
        barrier.wait(BOUND)
        return x

    plan = map_plan(numbers(at_once), meet, parallel=at_once)
    assert list(iterate(plan)) == list(range(at_once))


def test_the_threads_of_the_calls_copy_views_that_functions_return(monkeypatch):
    stack, threads = Chunk.of.__func__, set()

    def record_thread(kind, elements, *where):
        threads.add(threading.current_thread().name.split()[0])
        return stack(kind, elements, *where)

    images = np.arange(40 * 6 * 6).reshape(40, 6, 6)
    dataset = Dataset.from_tensor_slices(images).map(lambda x: x[::2, ::-1], num_parallel_calls=2)
    iterator = iter(dataset.batch(10))
    next(iterator)
    monkeypatch.setattr(Chunk, "of", classmethod(record_thread))
    assert np.array_equal(np.concatenate(list(iterator)), images[10:, ::2, ::-1])
    assert threads == {"penstock-calls"}


def test_autotuned_calls_run_at_once():
    barrier = threading.Barrier(2)

    def meet(x):
        barrier.wait(BOUND)
        return x

    assert list(iterate(map_plan(numbers(2), meet, parallel=-1))) == [0, 1]


def test_interleaved_datasets_are_read_at_once():
    barrier = threading.Barrier(3)

    def meet(x):
        barrier.wait(BOUND)
        return x

    def inner(x):
        return Dataset(map_plan(numbers(10 * x + 2, 10 * x), meet))

    plan = interleave_plan(numbers(3), inner, 3, 1, 3)
    assert list(iterate(plan)) == [0, 10, 20, 1, 11, 21]


def test_prefetching_runs_beside_the_consumer():
    ahead = [threading.Event() for _ in range(5)]

    def tell(x):
        ahead[x].set()
        return x

    iterator = iterate(n.Prefetch(map_plan(numbers(5), tell), 1))
    for number in range(4):
        assert next(iterator) == number
        assert ahead[number + 1].wait(BOUND)
    iterator.close()


class CountingStream(Stream):
    """Numbers, one per pull."""

    def __init__(self) -> None:
        self.pulled = 0

    def pull(self, limit: int) -> Chunk:
        self.pulled += 1
        return Chunk.of([np.int64(self.pulled)])

    def save(self) -> int:
        return self.pulled


class WatchedDepth(Depth):
    """Counts how often the thread checks whether there is room, which it does before it waits."""

    def __init__(self, size: int) -> None:
        self.looks = threading.Semaphore(0)
        super().__init__(size, Budget(4, 1 << 20, True))

    @property
    def elements(self) -> int:
        self.looks.release()
        return self._elements

    @elements.setter
    def elements(self, value: int) -> None:
        self._elements = value


@pytest.mark.parametrize("depth", [1, 2, 5])
def test_prefetch_pulls_nothing_before_and_its_depth_after_the_first_element(depth):
    source, watched = CountingStream(), WatchedDepth(depth)
    stream = PrefetchStream(source, watched)
    assert source.pulled == 0
    assert not ours()
    stream.pull(1)
    # It looks twice for every pull, then once more, finds no room and waits for the lock's
    # release; a thread that gets the lock afterwards sees all that it has done.
    while source.pulled < depth + 1:
        assert watched.looks.acquire(timeout=BOUND)
    with stream._ahead.changed:
        assert stream._ahead.elements == depth
    assert source.pulled == depth + 1
    stream.close()


def test_prefetching_stops_at_its_depth():
    calls = []
    iterator = iterate(n.Take(n.Prefetch(map_plan(numbers(100), calls.append), 1), 0))
    assert list(iterator) == []
    assert calls == []


def test_without_order_elements_come_as_they_are_ready():
    got_another = threading.Event()

    def first_waits(x):
        if x == 0:
            assert got_another.wait(BOUND)
        return x

    iterator = iterate(map_plan(numbers(6), first_waits, parallel=2, deterministic=False))
    found = [next(iterator)]
    got_another.set()
    found += iterator
    assert found[0] == 1
    assert sorted(found) == list(range(6))


def test_an_interleave_without_order_does_not_wait_for_a_slow_dataset():
    got_others = threading.Event()

    def first_waits(x):
        if x == 0:
            assert got_others.wait(BOUND)
        return x

    plan = interleave_plan(
        numbers(6), lambda x: Dataset(map_plan(one(x), first_waits)), 3, 1, 3, False
    )
    iterator = iterate(plan)
    found = [next(iterator) for _ in range(5)]
    got_others.set()
    assert sorted(found) == [1, 2, 3, 4, 5]
    assert list(iterator) == [0]


def test_the_options_free_an_interleave_of_its_order_too():
    plan = interleave_plan(numbers(6), prefetched_some, 3, 1, 3)
    loose = n.WithOptions(plan, Options(deterministic=False))
    assert prepare(loose).deterministic is False
    assert prepare(plan).deterministic is None


def one(x):
    return rows(int(x))


@pytest.mark.parametrize("late", [(0, 4), (0, 5)])
@pytest.mark.parametrize("around", [lambda p: p, lambda p: n.Prefetch(p, 3)], ids=["", "ahead"])
def test_an_interleave_without_order_resumes_exactly_from_every_state(late, around):
    """Some datasets are held back until all other ones have ended; some outer elements fail."""
    expected = sorted([x for x in range(9) if x % 4 != 2] * 3)
    for count in range(len(expected) + 1):
        release = threading.Event()
        hold = held_back(late, release)

        def thrice(x, hold=hold):
            return Dataset(n.Repeat(n.Take(map_plan(filter_plan(one(x), all_pass), hold), 1), 3))

        plan = around(interleave_plan(map_plan(numbers(9), without_2_of_4), thrice, 4, 2, 4, False))
        iterator = iterate(plan)
        found = list(itertools.islice(good(iterator), min(count, len(expected) - 3 * len(late))))
        if len(found) < count:
            release.set()
            found += itertools.islice(good(iterator), count - len(found))
        state = json.loads(json.dumps(iterator.state_dict()))
        release.set()
        again = iterate(plan)
        again.load_state_dict(state)
        assert sorted([*found, *good(again)]) == expected
        iterator.close()


def all_pass(x):
    return True


def rows_of_pairs(plan):
    return n.Unbatch(map_plan(plan, lambda x: np.array([x, x])))


@pytest.mark.parametrize(
    "source", [numbers(15), filter_plan(numbers(15))], ids=["access", "stream"]
)
@pytest.mark.parametrize("late", [(), (0,), (0, 4), (0, 9, 13), (3, 5)])
@pytest.mark.parametrize("wrap", [lambda p: p, rows_of_pairs], ids=["alone", "unbatched"])
def test_without_order_every_state_leads_to_the_rest_exactly(source, late, wrap, monkeypatch):
    """Some calls are held back until all other ones have ended, so states have holes."""
    monkeypatch.setattr("penstock.engine.calling.BUDGET", 0.0)  # One element per call.
    each = 1 if wrap(source) is source else 2
    expected = sorted([x for x in range(15) if x % 4 != 2] * each)
    for count in spread(range(len(expected) + 1), 6):
        release = threading.Event()
        failing = map_plan(source, without_2_of_4)
        held = map_plan(failing, held_back(late, release), parallel=4, deterministic=False)
        plan = wrap(held)
        iterator = iterate(plan)
        found = list(itertools.islice(good(iterator), min(count, len(expected) - each * len(late))))
        if len(found) < count:
            release.set()
            found += itertools.islice(good(iterator), count - len(found))
        state = iterator.state_dict()
        release.set()
        again = iterate(plan)
        again.load_state_dict(state)
        assert sorted([*found, *good(again)]) == expected
        iterator.close()


def without_2_of_4(x):
    if x % 4 == 2:
        raise ValueError(f"{x} is not wanted")
    return x


def held_back(late, release):
    def hold(x):
        if x in late:
            release.wait(BOUND)
        return x

    return hold


def good(iterator):
    """The elements that do not fail."""
    while True:
        try:
            yield next(iterator)
        except StopIteration:
            return
        except InvalidArgumentError:
            continue


AROUND = {
    "alone": lambda p: p,
    "batch": lambda p: n.Unbatch(n.Batch(p, 2)),
    "enumerate": lambda p: n.Enumerate(p),
    "assert_cardinality": lambda p: n.AssertCardinality(p, 15),
    "shuffle": lambda p: n.Shuffle(p, 4, 1),
    "prefetch": lambda p: n.Prefetch(p, 3),
    "repeat": lambda p: n.Repeat(p, 3),
    "repeat batches": lambda p: n.Unbatch(n.Repeat(n.Prefetch(n.Batch(p, 4), 2), 3)),
    "concatenate": lambda p: n.Concatenate(p, n.Concatenate(numbers(2), p)),
    "zip": lambda p: n.Zip((p, numbers(15)), nest.PAIR),
    "flat_map": lambda p: interleave_plan(numbers(3), lambda _: Dataset(p), 1, 1),
    "interleave": lambda p: interleave_plan(numbers(3), lambda _: Dataset(p), 2, 3),
}


def uneven(x):
    """A function that takes longer for some elements than for the next ones."""
    for _ in range(int(x) * 7 % 5 * 200):
        pass
    return abs(x)


def mapped_unevenly(calls, order):
    return map_plan(numbers(15), uneven, parallel=calls, deterministic=order)


def interleaved_unevenly(calls, order):
    def three_in_all(x):
        return Dataset(map_plan(numbers(int(x) * 3 + 3, int(x) * 3), uneven))

    return interleave_plan(numbers(5), three_in_all, 3, 1, calls, order)


@pytest.fixture
def restless():
    """Threads take turns so often that calls overtake each other."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


SAME_ORDER = [
    [(None, False), (3, False)],
    [(3, False), (None, False)],
    [(2, False), (4, False)],
]
OTHER_ORDER = [[(3, True), (3, False)], [(3, False), (3, True)]]
AROUND_AND_SETTINGS = [
    pytest.param(around, settings, id=f"{name}-{settings}")
    for name, around in AROUND.items()
    # Only a map that keeps its order is moved before a shuffle, so there the plans would differ.
    for settings in spread(SAME_ORDER if name == "shuffle" else SAME_ORDER + OTHER_ORDER, 2)
]


@pytest.mark.usefixtures("restless")
@pytest.mark.parametrize(("around", "settings"), AROUND_AND_SETTINGS)
@pytest.mark.parametrize("make", [mapped_unevenly, interleaved_unevenly])
def test_without_order_states_fit_other_numbers_of_calls(around, settings, make):
    """Each plan is resumed twice, so states of resumed iterators are tested, too."""
    expected = columns(iterate(around(map_plan(numbers(15), abs))))
    step = 2 if make is mapped_unevenly else 7
    for count in spread(range(0, len(expected[0]), step), 3):
        found, state = [], None
        for calls, order in [*settings, settings[0]]:
            plan = around(make(calls, order))
            iterator = iterate(plan)
            if state is not None:
                iterator.load_state_dict(state)
            found += itertools.islice(iterator, count // 2)
            state = iterator.state_dict()
            rest = list(iterator)
        assert columns([*found, *rest]) == expected


@pytest.mark.parametrize("last", [60, 61])
def test_an_order_that_is_resumed_may_end_far_ahead(last):
    """The last element of the log is found, although calls may take many elements by then."""
    plan = map_plan(numbers(100), abs, parallel=3, deterministic=False)
    iterator = iterate(plan)
    state = iterator.state_dict()
    state["at"] = {"own": [0, [], [*range(40), last]], "inputs": [0]}
    iterator.load_state_dict(state)
    found = [int(x) for x in iterator]
    assert found[:41] == [*range(40), last]
    assert sorted(found) == list(range(100))


def columns(elements):
    """Without an order the pairs may differ, but not the elements in them."""
    rows = [row if isinstance(row, tuple) else (row,) for row in elements]
    return [sorted(map(int, column)) for column in zip(*rows, strict=True)]


def test_closing_while_another_thread_is_inside_a_generator():
    inside, go_on = threading.Event(), threading.Event()

    def slowly():
        yield 1
        inside.set()
        go_on.wait()
        yield 2

    iterator = iter(Dataset.from_generator(slowly, output_signature=TensorSpec([], int64)))
    thread = threading.Thread(target=list, args=(iterator,))
    thread.start()
    inside.wait()
    iterator.close()
    go_on.set()
    thread.join()
    assert list(iterator) == []


def test_the_collector_takes_no_lock_to_stop_a_prefetch():
    """A finalizer may run while its thread is inside the function that it notifies."""
    notified = []
    stream = PrefetchStream(CountingStream(), WatchedDepth(1))
    stream.notify(lambda: notified.append(threading.current_thread()))
    stream.pull(1)
    [thread] = stream._pool._threads
    stream.itself = stream
    del stream
    gc.collect()
    thread.join()
    assert set(notified) == {thread}


ENDS = """
import atexit, threading
from penstock.data import Dataset

in_second_call, is_ending = threading.Event(), threading.Event()
atexit.register(is_ending.set)  # Runs before what penstock has registered.

def work(x):
    if x == 1:
        in_second_call.set()
        is_ending.wait()
    print("ended", x, flush=True)
    return x

iterator = iter(Dataset.range(2).map(work).prefetch(2))
next(iterator)
in_second_call.wait()
del iterator
"""


def test_the_end_of_a_program_waits_for_calls_of_an_iterator_that_is_gone(tmp_path):
    """A thread that Python ends inside the native code of JAX aborts the process."""
    assert run_text(ENDS, tmp_path).stdout == "ended 0\nended 1\n"
