"""Thousands of histories, each with its own seed; a failed one prints its story and its seed."""

import pytest

from penstock.service.host.moves import Move
from tests.effort import times
from tests.simulation.capacity import measure
from tests.simulation.histories import History, HistoryFailedError, run
from tests.simulation.kernel import Violation

BATCHES = times(4)
SIZE = 15


@pytest.mark.parametrize("batch", range(BATCHES))
def test_every_element_once(batch: int) -> None:
    for seed in range(batch * SIZE, (batch + 1) * SIZE):
        run(seed)


@pytest.mark.parametrize("batch", range(times(2)))
def test_all_consumers_of_a_round_get_elements_of_one_stream(batch: int) -> None:
    """Also where workers join and processes are killed meanwhile."""
    for seed in range(batch * 10, (batch + 1) * 10):
        run(seed, kind="joining")


@pytest.mark.parametrize("batch", range(times(2)))
def test_workers_leave_whose_streams_hold_much(batch: int) -> None:
    for seed in range(batch * 10, (batch + 1) * 10):
        run(seed, kind="leaving")


def test_states_move_in_some_histories_and_fail_to_move_in_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ends: list[bool] = []
    move = Move.run

    def note_end(moved: Move) -> None:
        move(moved)
        ends.append(moved.mark is not None)

    monkeypatch.setattr(Move, "run", note_end)
    for seed in range(100, 130):
        run(seed, kind="leaving")
    assert ends.count(True) > 2
    assert ends.count(False) > 2


def test_a_reader_that_reads_on_after_errors_stops_at_a_final_one() -> None:
    run(1205)


def test_a_seed_is_a_history() -> None:
    stories = []
    for _ in range(2):
        history = History(17)
        history.run()
        stories.append(list(history.world.story))
        history.close()
    assert stories[0] == stories[1]


def test_a_failure_prints_its_history(monkeypatch: pytest.MonkeyPatch) -> None:
    def lose(dispatcher: object, trainers: object) -> None:
        raise Violation("lost element (0, 7)")

    monkeypatch.setattr("tests.simulation.histories.settle", lose)
    with pytest.raises(HistoryFailedError, match=r"(?s)gets.*lost element \(0, 7\)\n.*--seed 6$"):
        run(6)


def test_a_history_without_an_end_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def work_on(*_: object) -> None:
        while True:
            pass

    monkeypatch.setattr("penstock.service.host.data_client.Links.dial", work_on)
    monkeypatch.setattr("tests.simulation.histories.ENOUGH", 1.0)
    with pytest.raises(HistoryFailedError, match=r"(?s)not ended.*, in work_on\n.*--seed 6$"):
        run(6)


def test_many_workers_and_clients() -> None:
    figures = measure(workers=60, clients=60, seconds=3.0)
    assert figures.requests > 60 * 5
    assert figures.leased > 0
