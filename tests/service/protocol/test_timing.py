"""Timing: which inequalities hold between the durations of the service, and where durations are."""

import ast
import itertools
from pathlib import Path

import pytest

import penstock.service
from penstock.service.protocol import timing

TIMES = {name: value for name, value in vars(timing).items() if name.isupper()}


def test_every_inequality_holds() -> None:
    assert timing.broken_rules(TIMES) == []


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        ({"LEASE_TRUST": 1.0}, "a reader stops relying on a lease before it expires"),
        ({"UNREPORTED_WORK": 1.0}, "the margin is longer than the elements handed out at once"),
        ({"LONGEST_CLIENT_HEARTBEAT": 2.5}, "a lease outlives several heartbeats"),
        ({"LEASE": 1.5}, "a lease outlives several heartbeats"),
        ({"LONGEST_LEASED_WORK": 8.0}, "a reader consumes what it leased while it may"),
        ({"CLIENT_HEARTBEAT": 2.1}, "clients and workers call no more often if there are many"),
        ({"LEASED_WORK": 1.1}, "clients and workers call no more often if there are many"),
        ({"WORKER_HEARTBEAT": 3.1}, "clients and workers call no more often if there are many"),
        ({"SUSPENSION": 8.0}, "a dispatcher that was suspended hears its clients"),
        ({"TICK": 1.0}, "ticks are not taken for suspensions"),
        ({"LONGEST_WORKER_HEARTBEAT": 4.0}, "a worker outlives several heartbeats"),
        ({"WORKER_HEARTBEAT_CALL": 9.0}, "a worker outlives a heartbeat that was not answered"),
        ({"WORKER_SILENCE": 1.0}, "a client leaves a silent worker before the dispatcher does"),
        ({"PROGRESS": 2.5}, "a client outwaits several reports of progress"),
        ({"IDLE_STREAM": 1.0}, "a stream outlives the reconnecting of its client"),
        ({"MOVE": 0.95}, "a worker that leaves can finish its last elements"),
        ({"WORKER_TIMEOUT": 1.3}, "a client waits for a worker that hands over its last element"),
        ({"SHORT_COPY": 0.2}, "the last copy fits into the switch"),
        ({"MOVED_STREAM": 9.0}, "a state that was moved outlives its reader's pause"),
        ({"PLAN_PROCESS_CLOSE": 0.5}, "a plan process closes before it is killed"),
        ({"WORKER_CLOSE": 1.5}, "a local worker stops before it is killed"),
        ({"HOLD_RENEWAL": 0.7}, "a dispatcher gives several signs before it distrusts its hold"),
        ({"HOLD_TRUST": 2.7}, "a dispatcher distrusts its hold before a standby takes over"),
        ({"HOLD_SILENCE": 5.0}, "a standby takes over while readers rely on their leases"),
        ({"CRASH_MEMORY": 35.0}, "a crashed process is remembered for longer than the pauses"),
        ({"CALL_WATCH": 2.0}, "a plan process records its calls for longer than an early crash"),
        ({"ARRAY_SILENCE": 9.0}, "an array outlives several questions of its client"),
        ({"RAY_RENEWAL": 3.5}, "a service on Ray outlives several messages of a program"),
        ({"RAY_WAIT": 25.0}, "a service on Ray says in time what is wrong"),
        ({"RAY_ORPHAN": 60.0}, "a journal on Ray outlives the restart of its dispatcher"),
        ({"HANDSHAKE": 15.0}, "a handshake ends before its worker counts as unreachable"),
    ],
)
def test_a_duration_that_does_not_fit_breaks_a_rule(change: dict[str, float], rule: str) -> None:
    assert any(broken.startswith(rule) for broken in timing.broken_rules({**TIMES, **change}))


def test_a_broken_rule_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "LEASE_TRUST", 1.0)
    with pytest.raises(AssertionError, match="not true: a reader stops relying on a lease before"):
        timing.check()


def test_every_duration_has_a_meaning_and_is_positive() -> None:
    source = Path(timing.__file__).read_text(encoding="utf-8")
    statements = ast.parse(source).body
    for statement, following in itertools.pairwise(statements):
        if isinstance(statement, ast.Assign):
            assert isinstance(following, ast.Expr), ast.unparse(statement)
    assert all(value > 0 for value in TIMES.values())


def test_no_other_module_of_the_service_has_durations() -> None:
    """A module constant that is a float is a duration, unless it is listed here."""
    factors_and_rates = {
        "_LATER",
        "FADING",
        "_MIN_BUSY",
        "_SLOW_NETWORK",
        "BUSY",
        "DELIVERING",
        "SMALL_LAG",
    }
    found = {
        target.id
        for file in Path(penstock.service.__file__).parent.rglob("*.py")
        if file.name != "timing.py"
        for statement in ast.parse(file.read_text(encoding="utf-8")).body
        if isinstance(statement, ast.Assign)
        and any(isinstance(n, ast.Constant) and type(n.value) is float for n in ast.walk(statement))
        for target in ast.walk(statement.targets[0])
        if isinstance(target, ast.Name)
    }
    assert found <= factors_and_rates, "move durations to service/protocol/timing.py"
