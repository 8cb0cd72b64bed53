"""Conducts the measurements: peers as child processes, one of them working at any moment.

In each round every peer runs the workload once, and each round starts with another peer, so that
other work of the machine slows all of them alike.
"""

from __future__ import annotations

import json
import select
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from benchmarks.environments import LOGS, PEERS, ROOT, Peer, child_variables, last_words
from benchmarks.processes import child
from benchmarks.workloads import SUBJECT, TRUTH, Rival, Workload

PATIENCE = 600.0


class PeerError(Exception):
    """A peer gave no usable answer, for the reason in the text."""


class PeerMissingError(PeerError):
    """The peer could not be installed, which does not count as a failure."""


class Voice:
    """One running peer: `ask` sends a line and waits for its answer, a bounded time."""

    def __init__(self, peer: Peer) -> None:
        self.peer = peer
        self.stack = ExitStack()
        self.log = LOGS / f"{peer.name}.log"
        LOGS.mkdir(parents=True, exist_ok=True)
        self.process: subprocess.Popen[bytes] = self._start()
        with ExitStack() as unless_it_starts:
            unless_it_starts.callback(self.close)
            self.versions: dict[str, str] = self._answer()["versions"]
            unless_it_starts.pop_all()

    def ask(self, request: str) -> dict[str, Any]:
        try:
            assert self.process.stdin is not None
            self.process.stdin.write(request.encode() + b"\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            self.close()
            raise PeerError(f"ended by itself: {last_words(self.log)}") from None
        return self._answer()

    def close(self) -> None:
        self.stack.close()

    def _start(self) -> subprocess.Popen[bytes]:
        sink = self.stack.enter_context(self.log.open("wb"))
        command = [str(self.peer.environment.python), "-m", self.peer.module]
        pipe = subprocess.PIPE
        return self.stack.enter_context(
            child(command, cwd=ROOT, env=child_variables(), stdin=pipe, stdout=pipe, stderr=sink)
        )

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        if not select.select([self.process.stdout], [], [], PATIENCE)[0]:
            self.close()
            raise PeerError(f"no answer for {PATIENCE:.0f} s")
        line = self.process.stdout.readline()
        if not line:
            self.close()
            raise PeerError(f"ended by itself: {last_words(self.log)}")
        reply: dict[str, Any] = json.loads(line)
        if "error" in reply:
            raise PeerError(reply["error"])
        return reply


class Choir:
    """The installed peers; each is started at its first request, and again after a crash."""

    def __init__(self, missing: Mapping[str, str]) -> None:
        self.missing = missing
        self.voices: dict[str, Voice] = {}
        self.versions: dict[str, dict[str, str]] = {}

    def ask(self, peer: str, request: str) -> dict[str, Any]:
        if peer in self.missing:
            raise PeerMissingError(self.missing[peer])
        try:
            return self._voice(peer).ask(request)
        except PeerError:
            if (voice := self.voices.get(peer)) and voice.process.poll() is not None:
                del self.voices[peer]
            raise

    def __enter__(self) -> Choir:
        return self

    def __exit__(self, *_: object) -> None:
        for voice in self.voices.values():
            voice.close()

    def _voice(self, peer: str) -> Voice:
        if peer not in self.voices:
            self.voices[peer] = Voice(PEERS[peer])
            self.versions[peer] = self.voices[peer].versions
        return self.voices[peer]


@dataclass
class Result:
    """One rival on one workload: nanoseconds per element, or what went wrong.

    `first` is the pipeline's very first pass, which also touches its memory for the first time.
    """

    rival: Rival
    elements: int
    first: float = 0.0
    rounds: list[float] = field(default_factory=list)
    problem: str = ""
    missing: bool = False

    @property
    def nanoseconds(self) -> float | None:
        return median(self.rounds) if self.rounds and not self.problem else None


def measure(choir: Choir, workload: Workload, rounds: int, quick: bool) -> list[Result]:
    """Checks what each rival yields, then times them in turn; penstock's result leads the list."""
    elements = workload.quick if quick else workload.elements
    rivals = (Rival(SUBJECT), *workload.rivals)
    results = [Result(rival, rival.size(elements)) for rival in rivals]
    for result in results:
        result.first = _time(choir, workload, result, 0.0)
    expected = {size: _truth(choir, workload, size) for size in {r.elements for r in results}}
    for result in results:
        _check(choir, workload, result, expected[result.elements])
    for number in range(rounds):
        for result in _rotate(results, number):
            result.rounds.append(_time(choir, workload, result, 0.05 if quick else 0.25))
    return results


def _truth(choir: Choir, workload: Workload, size: int) -> dict[str, Any] | None:
    try:
        return choir.ask(TRUTH, f"check {workload.name} {size}")
    except PeerError:
        return None


def _check(
    choir: Choir, workload: Workload, result: Result, expected: dict[str, Any] | None
) -> None:
    """Shows that the rival does the same work; not timed."""
    found = _ask(choir, workload, result, "check")
    if found and expected and found != expected:
        wrong = [key for key in found if found[key] != expected[key]]
        listed = ", ".join(f"{key} {found[key]:,}, not {expected[key]:,}" for key in wrong)
        result.problem = f"not the same result: {listed}"


def _time(choir: Choir, workload: Workload, result: Result, seconds: float) -> float:
    """Nanoseconds per element over at least one pass and so many seconds."""
    answer = _ask(choir, workload, result, "run", f" {seconds}")
    return answer["seconds"] / result.elements * 1e9 if answer else 0.0


def _ask(
    choir: Choir, workload: Workload, result: Result, verb: str, rest: str = ""
) -> dict[str, Any] | None:
    """The rival's answer, or None; after its first failure the rival gets no requests."""
    program = result.rival.program(workload.name)
    if result.problem:
        return None
    try:
        return choir.ask(result.rival.peer, f"{verb} {program} {result.elements}{rest}")
    except PeerError as failure:
        result.problem, result.missing = str(failure), isinstance(failure, PeerMissingError)
        return None


def _rotate(results: list[Result], by: int) -> Iterator[Result]:
    start = by % len(results)
    yield from results[start:]
    yield from results[:start]
