"""Streams behind fetches: the same elements for every client, in any order, any number of times."""

import itertools
import random
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from penstock.data.dataset import ENVIRONMENT
from penstock.element.dtypes import int64
from penstock.errors import InvalidArgumentError, UnavailableError
from penstock.plan import nodes as n
from penstock.plan.functions import Function
from penstock.plan.nodes import Node
from penstock.service.host import worker_streams
from penstock.service.host.runtime import Runtime
from penstock.service.host.tasks import FetchedChunk, Task, Tasks
from penstock.service.protocol.data_messages import Mark
from penstock.service.protocol.messages import Work
from tests.effort import spread, times
from tests.engine.driving import drain_stream, open_stream
from tests.engine.example_plans import for_every_operator, fresh, plans_over_sources
from tests.engine.list_values import plain


def kept_bytes(tasks):
    return sum(budget.nbytes for budget in tasks.pool.budgets.values())


def tasks_of(plan: Node, **settings: Any) -> Tasks:
    return Tasks(lambda digest: plan, lambda: ENVIRONMENT, "here:1", **settings)


def work_of(form: str = "single", **fields: Any) -> Work:
    fields = {"stream": 0, "streams": 1, "key": 7, "epoch": (0,), **fields}
    return Work("digest", "job", form, **fields)


def fetch_elements(task: Task, start: int, stop: int, *more: Any) -> list[Any]:
    """The elements of a fetch by ordinal, with failures as values."""
    found: list[Any] = []
    for part in task.fetch(start, stop, *more):
        if isinstance(part, FetchedChunk):
            assert part.start == start + len(found)
            found += [plain(element) for element in part.chunk.elements()]
        else:
            assert part.ordinal == start + len(found)
            found.append("FAULT")
    return found


def expected_of(plan: Node) -> list[Any]:
    """The elements that the engine gives."""
    return drain_stream(open_stream(fresh(plan)), 7)


def numbers(stop: int) -> Node:
    return n.Range(0, stop, 1, int64)


def map_plan(source: Node, call: Callable[..., Any]) -> Node:
    return n.Map(source, Function(call))


def stream(source: Node) -> Node:
    """The same elements, without random access."""
    return n.Filter(source, Function(lambda x: True))


class Calls:
    """Counts the calls of a function, by argument; a test may make it wait."""

    def __init__(self) -> None:
        self.seen: list[int] = []
        self.goes_on = threading.Event()
        self.goes_on.set()
        self.begun = threading.Semaphore(0)

    def __call__(self, x: Any) -> Any:
        self.seen.append(int(x))
        self.begun.release()
        assert self.goes_on.wait(60)
        return x


def streams_over_sources(operator: str) -> Iterator[tuple[str, Node]]:
    found = plans_over_sources(operator)
    return ((source, plan) for source, plan in found if plan.blocked is not None)


@pytest.fixture
def _many_marks(monkeypatch):
    monkeypatch.setattr(worker_streams, "_MARK_FRAMES", 1)
    monkeypatch.setattr(worker_streams, "_MARK_SHARE", 0)


@pytest.fixture
def _some_marks(monkeypatch):
    monkeypatch.setattr(worker_streams, "_MARK_FRAMES", 2)


@pytest.mark.usefixtures("_some_marks")
@for_every_operator()
def test_any_ranges_in_any_order_are_those_of_the_local_plan(plan):
    check_ranges(plan, kept=False)
    check_ranges(plan, kept=True)


def check_ranges(plan, *, kept):
    expected = expected_of(plan)
    rng = random.Random(1)
    tasks = tasks_of(fresh(plan))
    clients = [tasks.open(work_of(kept=kept)) for _ in range(2)]
    for _ in range(times(4)):
        start = rng.randrange(len(expected) + 3)
        stop = start + rng.randrange(1, 9)
        task = rng.choice(clients)
        assert fetch_elements(task, start, stop) == expected[start:stop]
        if stop > len(expected):
            assert task.length(stop) == len(expected)
        elif stop < len(expected):
            assert task.length(stop) is None
    tasks.close()


@pytest.mark.usefixtures("_many_marks")
@for_every_operator(streams_over_sources)
def test_another_worker_continues_from_marks(plan):
    """A mark is sent as bytes; another worker with this mark begins there."""
    expected = expected_of(plan)
    first = tasks_of(fresh(plan))
    marks = [
        part.mark
        for part in first.open(work_of()).fetch(0, len(expected) + 1)
        if isinstance(part, FetchedChunk) and part.mark is not None
    ]
    for mark in spread(marks, 2):
        other = tasks_of(fresh(plan))
        task = other.open(work_of())
        assert fetch_elements(task, mark.ordinal, 10**6, mark) == expected[mark.ordinal :]
        other.close()
    first.close()


def test_marks_are_sent_and_small(monkeypatch):
    monkeypatch.setattr(worker_streams, "_MARK_FRAMES", 3)
    monkeypatch.setattr(worker_streams, "_MARK_SHARE", 0)
    tasks = tasks_of(stream(numbers(100)))
    tasks.open(work_of())
    parts = list(tasks.open(work_of()).fetch(0, 100))
    marks = [part.mark for part in parts if isinstance(part, FetchedChunk) and part.mark]
    assert len(marks) >= 2
    assert all(len(mark.state) < 200 for mark in marks)
    assert all(mark.ordinal in [part.start for part in parts] for mark in marks)
    tasks.close()


def test_a_large_state_is_not_sent_but_used_here(monkeypatch):
    monkeypatch.setattr(worker_streams.encode_state, "__defaults__", (24,))
    monkeypatch.setattr(worker_streams, "_MARK_FRAMES", 1)
    monkeypatch.setattr(worker_streams, "_MARK_SHARE", 0)
    monkeypatch.setattr("penstock.service.logic.worker.TAIL", 0)
    calls = Calls()
    plan = n.Shuffle(map_plan(stream(numbers(200)), calls), 3, 1)
    tasks = tasks_of(plan)
    task = tasks.open(work_of())
    parts = [part for start in range(0, 200, 5) for part in task.fetch(start, start + 5)]
    assert not any(part.mark for part in parts)
    expected, before = expected_of(plan), len(calls.seen)
    assert fetch_elements(task, 199, 202) == expected[199:]
    assert len(calls.seen) - before < 100
    tasks.close()


def test_another_worker_continues_from_a_state_that_holds_elements(monkeypatch):
    monkeypatch.setattr(worker_streams, "_MARK_FRAMES", 1)
    monkeypatch.setattr(worker_streams, "_MARK_SHARE", 0)
    calls = Calls()
    plan = n.Shuffle(map_plan(stream(numbers(200)), calls), 3, 1)
    tasks, other = tasks_of(plan), tasks_of(plan)
    parts = [part for part in tasks.open(work_of()).fetch(0, 150) if isinstance(part, FetchedChunk)]
    mark = max((part.mark for part in parts if part.mark), key=lambda mark: mark.ordinal)
    expected, before = expected_of(plan), len(calls.seen)
    assert (
        fetch_elements(other.open(work_of()), mark.ordinal, 202, mark) == expected[mark.ordinal :]
    )
    assert len(calls.seen) - before <= 200 - mark.ordinal
    tasks.close(), other.close()


@pytest.mark.parametrize(
    "mark",
    [b"", b"\xff", b"garbage", b"\x92\x05\xa3abc", b"\x93\x05\x81\xa8penstock\x80\xc3"],
    ids=["no", "odd", "text", "wrong", "damaged"],
)
def test_a_mark_that_makes_no_sense_is_passed_over(mark):
    plan = stream(numbers(20))
    tasks = tasks_of(plan)
    assert fetch_elements(tasks.open(work_of()), 5, 20, Mark(5, mark)) == expected_of(plan)[5:]
    tasks.close()


def test_only_what_was_asked_for_is_made():
    calls = Calls()
    tasks = tasks_of(n.Prefetch(map_plan(numbers(400), calls), 50))
    task = tasks.open(work_of("random"))
    fetch_elements(task, 100, 110)
    assert sorted(calls.seen) == list(range(100, 110))
    assert task.length(110) is None
    assert fetch_elements(task, 395, 2000) == expected_of(numbers(400))[395:]
    assert task.length(2000) == 400
    tasks.close()


def test_a_fetch_that_other_fetches_follow_works_ahead_for_them():
    calls = Calls()
    tasks = tasks_of(n.Map(numbers(1000), Function(calls), parallel=4))
    task = tasks.open(work_of("random"))
    first = task.fetch(0, 2, None, 8)
    parts = [next(first)]
    for _ in range(8):
        assert calls.begun.acquire(timeout=60)
    parts += first
    assert sum(len(part.chunk) for part in parts) == 2
    assert len(fetch_elements(task, 2, 8)) == 6
    assert sorted(calls.seen) == list(range(8))
    tasks.close()


@pytest.mark.parametrize("form", ["random", "single"])
def test_readers_of_kept_elements_cost_one_production(form):
    calls = Calls()
    plan = map_plan(numbers(200), calls)
    tasks = tasks_of(plan if form == "random" else stream(plan))
    trainers = [tasks.open(work_of(form, kept=True)) for _ in range(8)]
    for start in range(0, 200, 20):
        for task in trainers:
            assert len(fetch_elements(task, start, start + 20)) == 20
    assert sorted(calls.seen) == list(range(200))
    tasks.close()


@pytest.mark.parametrize("form", ["random", "single"])
def test_readers_at_the_same_time_cost_one_production(form):
    calls = Calls()
    plan = map_plan(numbers(300), calls)
    tasks = tasks_of(plan if form == "random" else stream(plan))
    results: list[list[Any]] = []

    def read() -> None:
        task = tasks.open(work_of(form, kept=True))
        results.append(
            [x for start in range(0, 300, 64) for x in fetch_elements(task, start, start + 64)]
        )

    in_threads(*[read] * 6)
    assert results == [expected_of(numbers(300))] * 6
    assert sorted(calls.seen) == list(range(300))
    tasks.close()


def in_threads(*calls: Callable[[], None]) -> None:
    threads = [threading.Thread(target=call, daemon=True) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()


def test_what_is_there_does_not_wait_for_a_slow_function():
    calls = Calls()
    tasks = tasks_of(stream(map_plan(numbers(10), calls)))
    first, second = (tasks.open(work_of(kept=True)) for _ in range(2))
    assert len(fetch_elements(first, 0, 5)) == 5
    calls.goes_on.clear()
    slow = threading.Thread(target=fetch_elements, args=(first, 5, 6), daemon=True)
    while calls.begun.acquire(blocking=False):
        pass
    slow.start()
    assert calls.begun.acquire(timeout=60)
    assert len(fetch_elements(second, 0, 5)) == 5
    calls.goes_on.set()
    slow.join(60)
    tasks.close()


def test_who_waits_for_another_can_be_called_off():
    calls = Calls()
    tasks = tasks_of(stream(map_plan(numbers(10), calls)))
    first, second = (tasks.open(work_of()) for _ in range(2))
    calls.goes_on.clear()
    slow = threading.Thread(target=fetch_elements, args=(first, 0, 1), daemon=True)
    slow.start()
    assert calls.begun.acquire(timeout=60)
    assert list(second.fetch(0, 1, None, 0, after(3))) == []
    calls.goes_on.set()
    slow.join(60)
    tasks.close()


def after(count: int) -> Callable[[], bool]:
    """A function that returns true after `count` calls."""
    looks = itertools.count()
    return lambda: next(looks) >= count


def test_a_fetch_that_is_called_off_ends():
    tasks = tasks_of(map_plan(numbers(1000), lambda x: x))
    for form in ("random", "single"):
        task = tasks.open(work_of(form, kept=form == "single"))
        parts = list(task.fetch(0, 1000, None, 0, after(3)))
        assert 1 <= len(parts) <= 4
    tasks.close()


@pytest.mark.parametrize("form", ["random", "single"])
def test_consumers_get_every_nth_element(form):
    plan = numbers(20) if form == "random" else stream(numbers(20))
    tasks = tasks_of(plan)
    work = [work_of(form, consumers=3, consumer=j, kept=True) for j in range(3)]
    for j, task in enumerate(map(tasks.open, work)):
        assert fetch_elements(task, 0, 3) == expected_of(numbers(20))[j::3][:3]
        assert fetch_elements(task, 3, 50) == expected_of(numbers(20))[j::3][3:]
        assert task.length(50) == len(range(j, 20, 3))
    tasks.close()


def test_marks_of_consumers_are_in_their_own_count(monkeypatch):
    monkeypatch.setattr(worker_streams, "_MARK_FRAMES", 1)
    monkeypatch.setattr(worker_streams, "_MARK_SHARE", 0)
    plan = stream(numbers(60))
    works = [work_of(consumers=2, consumer=j, kept=True) for j in range(2)]
    for work in works:
        tasks = tasks_of(plan)
        parts = list(tasks.open(work).fetch(0, 30))
        marks = [part.mark for part in parts if isinstance(part, FetchedChunk) and part.mark]
        assert marks
        for mark in marks:
            other = tasks_of(plan)
            rest = fetch_elements(other.open(work), mark.ordinal, 30, mark)
            assert rest == expected_of(plan)[work.consumer :: 2][mark.ordinal :]
            other.close()
        tasks.close()


def test_a_consumer_that_is_ahead_waits_for_the_other_consumers(monkeypatch):
    monkeypatch.setattr(worker_streams, "TAIL", 200_000)
    monkeypatch.setattr(worker_streams, "_CHUNK", 1_000_000)
    monkeypatch.setattr("penstock.service.logic.worker.TAIL", 200_000)
    calls = Calls()
    plan = map_plan(stream(numbers(100)), lambda x: np.full(100_000, calls(x), np.uint8))
    tasks = tasks_of(plan, kept=1_000_000)
    ahead, behind = (tasks.open(work_of(consumers=2, consumer=j, kept=True)) for j in range(2))
    # 12 elements may be kept, and a chunk of 10 may arrive when 11 are kept.
    waits = threading.Event()
    looks = itertools.count()

    def quit() -> bool:
        if next(looks) > 40:
            waits.set()
        return False

    found: list[int] = []
    reader = threading.Thread(
        target=lambda: found.extend(fetched_count(ahead, 50, quit)), daemon=True
    )
    reader.start()
    assert waits.wait(60)
    assert len(calls.seen) <= 12 + 10
    assert sum(fetched_count(behind, 50, lambda: False)) == 50
    reader.join(60)
    assert sum(found) == 50
    assert sorted(calls.seen) == list(range(100))
    assert tasks.statuses()[0].buffered <= 2_200_000
    tasks.close()


def fetched_count(task: Task, stop: int, quit: Callable[[], bool]) -> list[int]:
    return [len(part.chunk) for part in task.fetch(0, stop, None, 0, quit)]


def test_what_is_kept_stays_within_bounds():
    plan = map_plan(stream(numbers(300)), lambda x: np.full(1000, x, np.uint8))
    tasks = tasks_of(plan, kept=50_000)
    jobs = [tasks.open(work_of(stream=stream_, kept=True)) for stream_ in range(3)]
    for task in jobs:
        fetch_elements(task, 0, 300)
        assert kept_bytes(tasks) <= 50_000
        assert sum(status.buffered for status in tasks.statuses()) <= 50_000
    assert fetch_elements(jobs[0], 0, 5) == [plain(np.full(1000, x, np.uint8)) for x in range(5)]
    tasks.close()


def test_copies_of_the_whole_are_shuffled_differently():
    plan = n.Shuffle(stream(numbers(50)), 50, 1)
    tasks = tasks_of(plan)
    copies = [fetch_elements(tasks.open(work_of("whole", stream=k)), 0, 50) for k in range(3)]
    assert copies[0] == expected_of(plan)
    assert copies[0] != copies[1] != copies[2]
    assert sorted(copies[1]) == sorted(copies[2]) == expected_of(numbers(50))
    tasks.close()


def test_streams_do_not_see_each_others_caches():
    calls = Calls()
    plan = n.Cache(map_plan(stream(numbers(5)), calls), "", n.Store())
    tasks = tasks_of(plan)
    for stream_ in range(2):
        fetch_elements(tasks.open(work_of("whole", stream=stream_)), 0, 9)
    assert calls.seen == [*range(5)] * 2
    assert plan.store.chunks is None
    tasks.close()


def test_says_what_was_done_since_the_last_time():
    tasks = tasks_of(stream(numbers(50)))
    fetch_elements(tasks.open(work_of()), 0, 30)
    (status,) = tasks.statuses()
    assert (status.job, status.elements) == ("job", 30)
    assert status.seconds > 0
    assert status.buffered == 30 * 8
    assert tasks.statuses()[0].elements == 0
    tasks.close()


def test_streams_without_readers_are_closed():
    now = [0.0]

    class ManualClock(Runtime):
        def now(self):
            return now[0]

    tasks = tasks_of(stream(numbers(50)), runtime=ManualClock())
    task = tasks.open(work_of())
    assert len(tasks) == 0
    fetch_elements(task, 0, 30)
    tasks.tidy(["another job"])
    assert len(tasks) == 1
    task.close()
    task.close()
    tasks.tidy(["job"])
    assert (len(tasks), len(tasks.pool.streams)) == (0, 1)
    now[0] += 100.0
    tasks.tidy()
    assert len(tasks.pool.streams) == kept_bytes(tasks) == 0
    fetch_elements(task := tasks.open(work_of()), 0, 30)
    task.close()
    tasks.tidy([])
    assert len(tasks.pool.streams) == 0


def test_a_stream_that_was_read_to_its_end_is_closed_at_once():
    tasks = tasks_of(stream(numbers(50)))
    for stop, left in ((30, 1), (60, 0)):
        task = tasks.open(work_of())
        fetch_elements(task, 0, stop)
        task.close(finished=True)
        assert len(tasks.pool.streams) == left
    assert kept_bytes(tasks) == 0
    tasks.close()


def test_what_cannot_be_opened_is_an_error_of_the_fetch():
    def refuse_digest(digest: str) -> Node:
        raise InvalidArgumentError(f"no {digest}")

    tasks = Tasks(refuse_digest, lambda: ENVIRONMENT, "here:1")
    task = tasks.open(work_of())
    with pytest.raises(InvalidArgumentError, match="no digest"):
        task.fetch(0, 1)


def test_a_stream_that_cannot_begin_is_an_error_of_every_fetch():
    tasks = tasks_of(stream(n.Shard(numbers(5), -1, -1)))
    for _ in range(2):
        with pytest.raises(Exception, match="SHARD_HINT"):
            fetch_elements(tasks.open(work_of()), 0, 1)
    tasks.close()


def test_an_exit_in_a_function_ends_its_fetch_alone():
    def leaves(x: Any) -> Any:
        if x == 3:
            raise SystemExit("I leave")
        return x

    tasks = tasks_of(stream(map_plan(numbers(9), leaves)))
    task = tasks.open(work_of())
    assert len(fetch_elements(task, 0, 3)) == 3
    with pytest.raises(SystemExit, match="I leave"):
        fetch_elements(task, 0, 9)
    assert len(fetch_elements(task, 0, 3)) == 3
    tasks.close()


def test_a_failure_names_the_worker_and_its_traceback():
    def fails(x: Any) -> Any:
        raise ValueError("not this one")

    tasks = tasks_of(stream(map_plan(numbers(3), fails)))
    (missed,) = tasks.open(work_of()).fetch(0, 1)
    assert missed.fault.kind == "InvalidArgumentError"
    assert "test_tasks.py" in missed.fault.message
    assert "element 0 (0): ValueError: not this one (on worker here:1)" in missed.fault.message
    assert "raise ValueError" in missed.fault.remote
    tasks.close()


def test_a_fetch_from_a_worker_that_stops_raises():
    calls = Calls()
    calls.goes_on.clear()
    tasks = tasks_of(stream(map_plan(numbers(10), calls)))
    first, second = (tasks.open(work_of()) for _ in range(2))
    told: list[Exception] = []

    def read(task: Task) -> None:
        try:
            fetch_elements(task, 0, 10)
        except UnavailableError as error:
            told.append(error)

    readers = [threading.Thread(target=read, args=(t,), daemon=True) for t in (first, second)]
    readers[0].start()
    assert calls.begun.acquire(timeout=60)
    readers[1].start()
    tasks.close()
    readers[1].join(60)
    calls.goes_on.set()
    readers[0].join(60)
    assert len(told) == 2
    with pytest.raises(UnavailableError, match="this worker stops"):
        tasks.open(work_of()).fetch(0, 1)
