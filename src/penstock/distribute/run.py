"""`Strategy.run`: calls one function once per replica, in order, in the caller's thread.

Only `merge_call` needs several stacks at once. Then replica 0 stays in the caller's thread and each
other replica runs in a `Strand`, a thread of its own. At most one replica runs at a time; the rest
are blocked in their `merge_call`. The first failure ends all replicas and is raised once.
"""

from __future__ import annotations

import contextvars
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import lru_cache, partial
from queue import SimpleQueue
from typing import Any, NoReturn

from penstock.distribute.replica_context import ReplicaContext, Standpoint, enter
from penstock.distribute.replicas import Replicas
from penstock.distribute.values.per_replica import regroup, spread
from penstock.engine.pool import Pool
from penstock.errors import FailedPreconditionError


class Unwind(BaseException):
    """Raised inside a replica's function to end it, because another replica has failed."""


@dataclass(frozen=True)
class MergeCall:
    """The replica is blocked in this merge_call."""

    merge_fn: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


@dataclass(frozen=True)
class ReplicaResult:
    """The replica's function returned this value."""

    value: Any


@dataclass(frozen=True)
class ReplicaFailure:
    """The replica's function raised this error."""

    error: BaseException


Stop = MergeCall | ReplicaResult | ReplicaFailure
"""Why a strand does not run."""


@lru_cache(maxsize=1)
def _threads(process: int) -> Pool:
    """The threads for replicas. A forked process gets a pool of its own: threads do not survive."""
    return Pool(sys.maxsize, "penstock-replica")


class Strand:
    """A replica in a thread of its own, which runs only between `resume` and its next stop.

    Only the caller's thread writes `stop`, `_started` and `_unwinding`. The replica's thread reads
    `_unwinding` after `_answers` has woken it; the two queues need no lock beside them.
    """

    def __init__(self, call: Callable[[], Any], context: contextvars.Context) -> None:
        self._call, self._context = call, context
        self._answers: SimpleQueue[Any] = SimpleQueue()
        self._stops: SimpleQueue[Stop] = SimpleQueue()
        self._started = self._unwinding = False
        self.stop: Stop | None = None
        """Why it does not run; None before it starts and while it runs."""

    def resume(self, answer: Any) -> Stop:
        """Runs the replica until its next stop; its pending merge_call returns `answer`."""
        if isinstance(self.stop, ReplicaResult | ReplicaFailure):
            return self.stop
        self.stop = None
        if self._started:
            self._answers.put(answer)
        else:
            self._started = True
            _threads(os.getpid()).submit(self._context.run, self._run_function)
        self.stop = self._stops.get()
        return self.stop

    def wait_for_answer(self, merge_call: MergeCall) -> Any:
        """Called by the replica's thread: blocks until `resume`, and returns the answer."""
        if not self._unwinding:
            self._stops.put(merge_call)
            answer = self._answers.get()
        if self._unwinding:
            raise Unwind
        return answer

    def unwind(self) -> None:
        """Ends the replica; its next merge_call raises `Unwind`.

        If it still runs (an interrupt ended `resume`), this does not wait for it.
        """
        self._unwinding = True
        if isinstance(self.stop, MergeCall):
            self.resume(None)
        elif self.stop is None:
            self._answers.put(None)

    def _run_function(self) -> None:
        try:
            self._stops.put(ReplicaResult(self._call()))
        except BaseException as error:
            self._stops.put(ReplicaFailure(error))


def each_replica(
    strategy: Any, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """What `fn` returned, as `PerReplica`; unwrapped if this process has one replica."""
    count = strategy._replicas.here
    positional = spread(args, count, "Strategy.run")
    named = spread(kwargs, count, "Strategy.run")
    calls = [partial(fn, *positional[i], **named[i]) for i in range(count)]
    results = Run(strategy, calls).results()
    return results[0] if count == 1 else regroup(results, always=False)


class Run:
    """One call of `Strategy.run`; used by the caller's thread only."""

    def __init__(self, strategy: Any, calls: Sequence[Callable[[], Any]]) -> None:
        self._strategy, self._calls = strategy, calls
        self._replicas: Replicas = strategy._replicas
        # Copied before replica 0 runs, which may change them for itself before its merge_call.
        self._context = contextvars.copy_context()
        self._thread_settings = [self._replicas.backend.thread_settings() for _ in calls[1:]]
        self._strands: list[Strand] = []
        self._answers: Sequence[Any] = [None] * len(calls)
        self._failure: BaseException | None = None

    def results(self) -> list[Any]:
        """What each replica returned; raises the first failure once every replica has ended."""
        try:
            results = [self._finish_replica(index) for index in range(len(self._calls))]
        except (Exception, Unwind):
            if self._failure is None:
                raise
        finally:
            if self._strands:
                self._unwind()
        if self._failure is not None:
            raise self._failure
        return results

    def _unwind(self) -> None:
        """Ends every strand, even if an interrupt is raised in between."""
        with ExitStack() as ending:
            for strand in reversed(self._strands):
                ending.callback(strand.unwind)

    def _finish_replica(self, index: int) -> Any:
        if not self._strands:
            return self._call_replica(index, partial(self._merge_call, index))
        stop = self._strands[index - 1].resume(self._answers[index])
        if isinstance(stop, ReplicaFailure):
            self._fail(stop.error)
        if isinstance(stop, MergeCall):
            self._fail(self._missing_merge_error([index], [0]))
        return stop.value

    def _call_replica(self, index: int, merge_call: Callable[..., Any]) -> Any:
        """Runs replica `index` in the calling thread."""
        replica = ReplicaContext(self._strategy, self._replicas.first + index, merge_call)
        computing = self._replicas.backend.use_device(self._replicas.devices[index].handle)
        with enter(Standpoint(self._strategy, replica)), computing:
            try:
                return self._calls[index]()
            except Exception as error:
                _note(error, f"in {self._name(index)}")
                raise

    def _name(self, index: int) -> str:
        number, device = self._replicas.first + index, self._replicas.devices[index].name
        return f"replica {number} of {self._replicas.total} ({device})"

    def _merge_call(
        self,
        index: int,
        merge_fn: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """`merge_call` of a replica that runs in the caller's thread."""
        if self._failure is not None:
            raise Unwind
        if len(self._calls) == 1:
            return spread(self._call_merge_fn(merge_fn, args, kwargs), 1, _CALL)[0]
        if index:
            self._fail(self._missing_merge_error([index], range(index)))
        self._merge_all([MergeCall(merge_fn, args, kwargs), *self._resume_others()])
        return self._answers[0]

    def _merge_all(self, merge_calls: Sequence[MergeCall]) -> None:
        """Calls the merge function of replica 0 once, with the arguments of all replicas."""
        try:
            merged = self._call_merge_fn(
                merge_calls[0].merge_fn,
                regroup([one.args for one in merge_calls], False, _ARGUMENTS),
                regroup([one.kwargs for one in merge_calls], False, _ARGUMENTS),
            )
            self._answers = spread(merged, len(self._calls), _CALL)
        except Exception as error:
            _note(error, f"in merge_call, for all {len(self._calls)} replicas")
            self._fail(error)

    def _call_merge_fn(self, merge_fn: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        with enter(Standpoint(self._strategy, None)):
            return merge_fn(self._strategy, *args, **kwargs)

    def _resume_others(self) -> list[MergeCall]:
        """Runs every other replica until its merge_call."""
        if not self._strands:
            count = len(self._calls)
            self._strands = [self._make_strand(index) for index in range(1, count)]
        stops = []
        for index, strand in enumerate(self._strands, 1):
            stops.append(strand.resume(self._answers[index]))
            if isinstance(stops[-1], ReplicaFailure):
                self._fail(stops[-1].error)
        arrived = [stop for stop in stops if isinstance(stop, MergeCall)]
        if len(arrived) < len(stops):
            there = [i for i, stop in enumerate(stops, 1) if isinstance(stop, MergeCall)]
            gone = [i for i, stop in enumerate(stops, 1) if not isinstance(stop, MergeCall)]
            self._fail(self._missing_merge_error([0, *there], gone))
        return arrived

    def _make_strand(self, index: int) -> Strand:
        def call() -> Any:
            with self._thread_settings[index - 1]:
                return self._call_replica(
                    index, lambda *given: strand.wait_for_answer(MergeCall(*given))
                )

        strand = Strand(call, self._context.copy())
        return strand

    def _missing_merge_error(
        self, there: Sequence[int], gone: Sequence[int]
    ) -> FailedPreconditionError:
        return FailedPreconditionError(
            f"ReplicaContext.merge_call: {_replica_numbers(self._replicas, there)} called it, but "
            f"{_replica_numbers(self._replicas, gone)} returned without calling it; "
            "every replica must call merge_call (all_reduce, all_gather) equally often"
        )

    def _fail(self, error: BaseException) -> NoReturn:
        self._failure = error
        raise Unwind


_CALL = "ReplicaContext.merge_call"
_ARGUMENTS = f"{_CALL}: the replicas passed"


def _replica_numbers(replicas: Replicas, indices: Sequence[int]) -> str:
    numbers = ", ".join(str(replicas.first + index) for index in indices)
    return f"replica {numbers}" if len(indices) == 1 else f"replicas {numbers}"


def _note(error: BaseException, text: str) -> None:
    if text not in getattr(error, "__notes__", ()):
        error.add_note(text)
