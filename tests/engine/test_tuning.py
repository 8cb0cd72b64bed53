"""AUTOTUNE as a pure function: machines are simulated, nothing here waits."""

import itertools
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pytest

from penstock.engine.tuning import (
    AUTOTUNE,
    HANDOVER,
    Brevity,
    Budget,
    CpuUse,
    Depth,
    Parallelism,
    Relocation,
    cores,
)
from penstock.plan.options import Options

MB = 1 << 20
PLENTY = Budget(threads=32, nbytes=256 * MB, enabled=True)


def record_climb(parallelism: Parallelism, rate, nbytes: float = 8, rounds: int = 60) -> list[int]:
    """How many calls were made at once in every round, on a machine of that rate."""
    calls = []
    for _ in range(rounds):
        calls.append(parallelism.calls)
        parallelism.note_rate(rate(parallelism.calls), nbytes)
    return calls


def test_waiting_functions_get_as_many_calls_as_there_are_threads():
    calls = record_climb(Parallelism(AUTOTUNE, PLENTY), lambda calls: 100.0 * calls)
    assert calls[0] == 2
    assert max(calls) == PLENTY.threads
    assert calls[-20:] == [PLENTY.threads] * 20


@pytest.mark.parametrize("useful", [4, 8, 20])
def test_no_more_calls_than_are_of_use(useful):
    calls = record_climb(Parallelism(AUTOTUNE, PLENTY), lambda calls: 100.0 * min(calls, useful))
    late = calls[-20:]
    assert min(late) >= useful
    assert max(late) <= 2 * useful + 1


def test_calls_that_hinder_each_other_are_given_up():
    calls = record_climb(Parallelism(AUTOTUNE, PLENTY), lambda calls: 1000.0 / calls)
    assert max(calls) <= 4
    assert calls[-20:] == [1] * 20


# A look takes 0.05 s or a little more, so 55 looks are about 3 s.
MACHINES = {
    "a wait": lambda calls: 200.0 * calls,
    "two cores": lambda calls: 100.0 * min(calls, 2),
    "two cores, with a little more for each call": lambda calls: 100 * min(calls, 2) - calls / 4,
    "one lock": lambda calls: 100.0 - calls,
    "a slow consumer": lambda calls: 50.0,
    "a disk of eight": lambda calls: 100.0 * min(calls, 8) / (1 + max(0, calls - 8) / 20),
}


@pytest.mark.parametrize("noise", [0.0, 0.02, 0.05, 0.1])
@pytest.mark.parametrize("machine", MACHINES)
def test_calls_settle_within_three_seconds_near_the_best_number(machine, noise):
    rate = MACHINES[machine]
    best = max(rate(calls) for calls in range(1, PLENTY.threads + 1))
    for seed in range(20):
        random = np.random.default_rng(seed)
        noisy = lambda calls: rate(calls) * (1 + noise * random.standard_normal())  # noqa: B023, E731
        calls = record_climb(Parallelism(AUTOTUNE, PLENTY), noisy, rounds=300)
        assert len(set(calls[55:])) == 1
        assert rate(calls[-1]) >= 0.9 * best


@pytest.mark.parametrize(("useful", "looks"), [(64, 30), (14, 30), (1, 20)])
def test_numbers_beyond_the_bounds_cost_no_looks(useful, looks):
    parallelism = Parallelism(AUTOTUNE, Budget(threads=64, nbytes=256 * MB, enabled=True))
    calls = record_climb(parallelism, lambda calls: 100.0 * min(calls, useful), rounds=100)
    assert len(set(calls[looks:])) == 1


def test_calls_are_tuned_again_when_the_rate_has_changed():
    parallelism = Parallelism(AUTOTUNE, PLENTY)
    record_climb(parallelism, lambda calls: 100.0 * min(calls, 2))
    settled = parallelism.calls
    record_climb(parallelism, lambda calls: 300.0, rounds=7)
    assert set(record_climb(parallelism, lambda calls: 100.0 * min(calls, 2))) == {settled}
    assert record_climb(parallelism, lambda calls: 1000.0 * calls)[-1] == PLENTY.threads


def test_a_number_that_was_asked_for_stays():
    parallelism = Parallelism(5, PLENTY)
    assert set(record_climb(parallelism, lambda calls: 100.0 * calls)) == {5}
    assert parallelism.most == 5


def test_threads_are_bounded_by_the_budget():
    budget = Budget(threads=3, nbytes=MB, enabled=True)
    assert Parallelism(100, budget).calls == 3
    assert max(record_climb(Parallelism(AUTOTUNE, budget), lambda calls: 100.0 * calls)) == 3
    alone = Budget(threads=1, nbytes=MB, enabled=True)
    assert set(record_climb(Parallelism(AUTOTUNE, alone), lambda calls: 100.0 * calls)) == {1}


def test_results_in_flight_fit_into_the_memory():
    calls = record_climb(Parallelism(AUTOTUNE, PLENTY), lambda calls: 100.0 * calls, nbytes=16 * MB)
    assert max(calls) * 2 * 16 * MB <= PLENTY.nbytes
    calls = record_climb(Parallelism(AUTOTUNE, PLENTY), lambda calls: 100.0 * calls, nbytes=1 << 40)
    assert set(calls[1:]) == {1}


def test_nothing_is_tuned_where_tuning_is_off():
    budget = Budget(threads=32, nbytes=MB, enabled=False)
    assert len(set(record_climb(Parallelism(AUTOTUNE, budget), lambda calls: 100.0 * calls))) == 1
    depth = Depth(AUTOTUNE, budget)
    assert note_starved(depth, 100, 1.0, 8) == depth.elements == 2


def note_starved(depth: Depth, times: int, seconds: float, nbytes: float) -> int:
    """Lets the thread wait for room, and the caller for an element, as long as making one takes."""
    for _ in range(times):
        depth.note_made(1, seconds, nbytes)
        depth.note_blocked(seconds)
        depth.note_starved(seconds)
    return depth.elements


def test_depth_stays_where_elements_are_made_too_slowly():
    depth = Depth(AUTOTUNE, PLENTY)
    for _ in range(100):
        depth.note_made(1, 0.1, 100)
        depth.note_starved(0.1)
    assert depth.elements == 2


def test_depth_grows_while_thread_and_caller_wait_for_each_other():
    depth = Depth(AUTOTUNE, PLENTY)
    assert depth.elements == 2
    assert note_starved(depth, 1, 0.1, 100) == 4
    assert note_starved(depth, 3, 0.1, 100) == 32
    assert note_starved(depth, 100, 0.1, 100) == 4096


def test_the_wait_for_the_first_element_does_not_count():
    depth = Depth(AUTOTUNE, PLENTY)
    depth.note_starved(1.0)
    for _ in range(100):
        depth.note_made(1, 0.01, 100)
        depth.note_blocked(0.1)
    assert depth.elements == 2


class Reading(NamedTuple):
    """The result of a simulated reading: the depth, and when it changed last."""

    depth: int
    changed: float
    waited: float
    """The fraction of the last half of the time for which the caller waited."""


def read(made_in: Callable[[], float], used_in: Callable[[], float], seconds: float) -> Reading:
    """Simulates a thread that makes elements and a caller that uses them, with these times."""
    depth, taken = Depth(AUTOTUNE, PLENTY), list[float]()
    ready = asked = changed = waited = 0.0
    while asked < seconds:
        before = depth.elements
        room = taken[-before] if len(taken) >= before else 0.0
        if room > ready:
            depth.note_blocked(room - ready)
        cost = made_in()
        ready = max(ready, room) + cost
        depth.note_made(1, cost, 100)
        if ready > asked:
            depth.note_starved(ready - asked)
            waited += ready - asked if asked > seconds / 2 else 0.0
        taken.append(max(ready, asked))
        changed = taken[-1] if depth.elements != before else changed
        asked = taken[-1] + used_in()
    return Reading(depth.elements, changed, waited / (seconds / 2))


def now_and_then(usual: float, rare: float, chance: float, seed: int) -> Callable[[], float]:
    random = np.random.default_rng(seed)
    return lambda: random.exponential(rare) if random.random() < chance else usual


@pytest.mark.parametrize("seed", range(20))
def test_depth_settles_within_three_seconds_where_the_caller_is_faster(seed):
    """Pauses of some milliseconds do not matter: the machine has other work, too."""
    made, used = now_and_then(0.004, 0.008, 0.2, seed), now_and_then(1e-5, 0.01, 0.001, seed + 99)
    assert read(made, used, seconds=60).changed < 3


@pytest.mark.parametrize("seed", range(20))
def test_depth_suffices_where_the_caller_is_slower_and_elements_are_uneven(seed):
    made, used = now_and_then(0.004, 0.03, 0.1, seed), now_and_then(0.01, 0.02, 0.1, seed + 99)
    found = read(made, used, seconds=60)
    assert found.depth <= 32
    assert found.waited < 0.03


def test_one_long_pause_of_the_caller_does_not_fill_the_memory():
    pauses = itertools.chain([0.0] * 100, [60.0], itertools.repeat(0.0))
    assert read(lambda: 0.003, lambda: next(pauses), seconds=120).depth <= 4


def test_depth_becomes_what_a_caller_takes_at_once():
    pauses = itertools.cycle([0.0] * 31 + [0.1])
    found = read(lambda: 0.003, lambda: next(pauses), seconds=20)
    assert 32 <= found.depth <= 64
    assert found.changed < 3
    assert found.waited < 0.02


def test_depth_grows_also_if_elements_become_uneven_late():
    costs = itertools.chain([0.001] * 10_000, itertools.cycle([0.001] * 19 + [0.1]))
    found = read(lambda: next(costs), lambda: 0.01, seconds=300)
    assert 8 <= found.depth <= 16
    assert 100 < found.changed < 110
    assert found.waited < 0.02


@pytest.mark.parametrize(("nbytes", "most"), [(MB, 256), (100 * MB, 2), (10_000 * MB, 2)])
def test_what_is_prefetched_fits_into_the_memory(nbytes, most):
    assert note_starved(Depth(AUTOTUNE, PLENTY), 100, 0.1, nbytes) == most


@pytest.mark.parametrize("size", [1, 3, 10])
def test_a_depth_that_was_asked_for_stays_where_elements_cost_something(size):
    assert Depth(size, PLENTY).elements == size
    assert note_starved(Depth(size, PLENTY), 100, 0.01, 8) == size
    assert note_starved(Depth(size, PLENTY), 100, 1e-7, MB) == size


def test_a_small_depth_grows_where_handing_over_costs_more_than_making():
    depth = Depth(1, PLENTY)
    assert note_starved(depth, 15, 1e-7, 8) == 1
    assert 1 < note_starved(depth, 100, 1e-7, 8) <= 1024


def test_the_budget_is_what_the_options_say():
    options = Options()
    usual = Budget.of(options)
    assert usual == Budget(max(16, 4 * cores()), 256 * MB, True)
    options.autotune.cpu_budget, options.autotune.ram_budget = 3, 1000
    assert Budget.of(options) == Budget(3, 1000, True)
    options.threading.private_threadpool_size = 7
    options.autotune.enabled = False
    assert Budget.of(options) == Budget(7, 1000, False)


def test_a_guessed_depth_is_larger_if_elements_cost_next_to_nothing():
    depth = Depth(16, PLENTY, guess=True)
    depth.note_made(1, 1e-6, 1000)
    assert depth.elements == 256
    for seconds, nbytes, most in [
        (1e-3, 8, 16),
        (1e-5, 8, 100),
        (1e-6, MB, 16),
        (1e-6, MB / 50, 50),
    ]:
        depth = Depth(16, PLENTY, guess=True)
        depth.note_made(1, seconds, nbytes)
        assert depth.elements == most
    asked = Depth(16, PLENTY)
    asked.note_made(1, 1e-6, 8)
    assert asked.elements == 16


# Moving from threads to processes


def looks(relocation: Relocation, calls: float, program: float, times: int = 2) -> list[bool]:
    """The decision after many looks at calls that use so many seconds of CPU in each second."""
    use = CpuUse(calls, program)
    return [relocation.note_threads(100, 1.0, use, 100 * 1000.0) for _ in range(times)]


@pytest.mark.parametrize(
    ("calls", "program", "moves"),
    [
        (1.0, 1.05, True),  # A function that holds the lock.
        (0.4, 1.0, True),  # A function and a consumer that both hold the lock.
        (2.9, 3.0, True),  # A function that releases the lock some of the time.
        (13.0, 13.2, False),  # A function that releases the lock.
        (0.02, 0.1, False),  # A function that waits.
        (0.4, 0.5, False),  # A consumer that is slow.
        (0.4, 4.0, False),  # A source that is busy.
    ],
)
def test_calls_move_where_they_are_busy_and_do_not_scale(calls, program, moves):
    assert looks(Relocation(14), calls, program) == [False, moves]


def test_calls_do_not_move_for_one_look():
    relocation = Relocation(14)
    assert looks(relocation, 1.0, 1.0, 1) == [False]
    assert looks(relocation, 10.9, 11.0, 1) == [False]
    assert looks(relocation, 1.0, 1.0, 2) == [False, True]


def test_short_looks_are_joined():
    relocation = Relocation(14)
    looked = [relocation.note_threads(5, 0.05, CpuUse(0.05, 0.05), 100.0) for _ in range(6)]
    assert looked == [False] * 5 + [True]


def test_calls_with_large_results_and_little_work_stay_in_threads():
    relocation = Relocation(14)
    use = CpuUse(1.0, 1.0)
    assert not any(relocation.note_threads(100, 1.0, use, 1e9) for _ in range(5))


@pytest.mark.parametrize(("rate", "returns"), [(80, True), (95, False), (150, False)])
def test_calls_return_if_processes_are_slower_and_that_is_the_last_decision(rate, returns):
    relocation = Relocation(4)
    assert looks(relocation, 1.0, 1.0) == [False, True]
    assert not relocation.note_processes(50, 0.5), "the start does not count"
    assert relocation.note_processes(rate, 1.0) == returns
    assert not any(relocation.note_processes(1, 1.0) for _ in range(10))


@pytest.mark.parametrize(("rate", "returns"), [(95, True), (102, True), (110, False)])
def test_long_calls_that_use_all_cores_try_processes_and_return_unless_these_are_faster(
    rate, returns
):
    relocation = Relocation(2)
    assert looks(relocation, 1.9, 1.95, 8) == [False] * 7 + [True]
    assert not relocation.note_processes(50, 0.5)
    assert relocation.note_processes(rate, 1.0) == returns


def test_short_calls_that_use_all_cores_stay_in_threads():
    relocation = Relocation(2)
    use = CpuUse(1.9, 1.95)
    assert not any(relocation.note_threads(10_000, 1.0, use, 1000.0) for _ in range(20))


def test_one_core_is_no_reason_to_try_processes():
    assert not any(looks(Relocation(1), 0.9, 0.95, 20))


def test_processes_that_begin_slowly_get_more_time():
    relocation = Relocation(4)
    assert looks(relocation, 1.0, 1.0) == [False, True]
    assert not any(relocation.note_processes(2, 0.5) for _ in range(7))
    assert not relocation.note_processes(100, 1.0)
    assert not relocation.note_processes(120, 1.0), "now they are as fast as threads were"
    never = Relocation(4)
    assert looks(never, 1.0, 1.0) == [False, True]
    assert [never.note_processes(2, 0.5) for _ in range(11)].count(True) == 1


def read_all(brevity: Brevity, cpu: list[float], clock: list[float]) -> str:
    """Which thread reads each dataset in turn: the caller (c) or a thread of its own (t)."""
    readers = ""
    for processor, seconds in zip(cpu, clock, strict=True):
        here = brevity.expect()
        readers += "c" if here else "t"
        if here:
            brevity.note_here(seconds)
        else:
            brevity.note_ahead(processor)
    return readers


def test_the_caller_reads_short_datasets_after_the_first():
    short = [HANDOVER / 5] * 50
    assert read_all(Brevity(), short, short) == "t" + "c" * 49


def test_threads_read_datasets_that_need_a_processor_for_long():
    long = [2 * HANDOVER] * 50
    assert read_all(Brevity(), long, long) == "t" * 50


def test_threads_read_from_a_slow_disk_and_trials_become_rare():
    short, slow = [HANDOVER / 5] * 5000, [100 * HANDOVER] * 5000
    readers = read_all(Brevity(), short, slow)
    assert readers.startswith("tc" + "t" * 8)
    assert readers.count("c") < 12
    assert "cc" not in readers


def test_a_few_slow_datasets_do_not_bring_threads_back():
    short = [HANDOVER / 5] * 100
    mixed = [10 * HANDOVER if number % 20 == 19 else HANDOVER / 5 for number in range(100)]
    brevity = Brevity()
    assert read_all(brevity, short, mixed) == "t" + "c" * 99
    assert brevity.failures == 0


def test_there_is_one_trial_at_a_time():
    brevity = Brevity()
    brevity.note_ahead(HANDOVER / 5)
    assert brevity.expect()
    brevity.note_ahead(HANDOVER / 5)
    assert not brevity.expect()
    brevity.note_here(2 * HANDOVER)
    assert brevity.failures == 1
    for _ in range(9):
        assert not brevity.expect()
        brevity.note_ahead(HANDOVER / 5)
    assert brevity.expect()
