"""Clients: programs of users that read, save states, crash, and resume from a saved state.

The stream that they read is the real one.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec

from penstock.engine.contract import copy_state
from penstock.errors import (
    AbortedError,
    FailedPreconditionError,
    NotFoundError,
    OpError,
    OutOfRangeError,
    UnavailableError,
)
from penstock.service.host.remote_stream import Opening
from penstock.service.host.services import Session
from penstock.service.logic.client import claims_of, known_streams
from penstock.service.protocol.messages import (
    Leave,
    OpenIteration,
    OpenIterationReply,
    RegisterDataset,
    StreamRange,
    WorkerInfo,
)
from tests.simulation.elements import TREE, failed_value, values_of
from tests.simulation.endpoints import Peer
from tests.simulation.kernel import Violation
from tests.simulation.machines import Machine
from tests.simulation.network import Network
from tests.simulation.plans import element
from tests.simulation.streams import CheckedStream
from tests.simulation.trainers import DEAD, ENDED, LEFT, SavedState, Trainer, service_part

MOST_FAILURES = 4
"""After so many errors, a stubborn trainer stops, too."""

EXPECTED = (AbortedError, NotFoundError, UnavailableError)
"""Errors that a reader may get although the service works as it should."""


class Client(Peer):
    """One process of a trainer, from a start to its end or crash."""

    def __init__(
        self,
        network: Network,
        trainer: Trainer,
        host: str,
        note_failure: Callable[[Trainer], None],
    ) -> None:
        super().__init__(network, f"{trainer.name}#{trainer.lives}")
        self.trainer = trainer
        self.host = host
        self._note_failure = note_failure
        self._left = False
        self._failures = 0
        self.stream: CheckedStream | None = None
        trainer.lives += 1
        trainer.client = self
        if trainer.saved is None and trainer.clients:
            trainer.past.append((trainer.clients, trainer.history))
            trainer.clients = []
        trainer.clients.append(self.name)
        trainer.history = list(trainer.saved.history) if trainer.saved else []
        start = trainer.saved or trainer.merged
        self.world.tell(self.name, "starts", "" if start is None else f"from {start.state}")
        self.spawn(partial(self._live, None if start is None else start.state))

    def crash(self) -> None:
        self.world.tell(f"{self.name} dies")
        self.kill()

    def kill(self, silently: bool = False) -> None:
        super().kill(silently)
        if self.stream is not None:
            self.stream.abandon()

    def _live(self, state: dict[str, Any] | None) -> None:
        trainer = self.trainer
        try:
            self._read(state)
        except FailedPreconditionError as error:
            status = self._judge_refusal(state, error)
            self.world.tell(f"{self.name} is {status}: {error}")
            trainer.status = status if trainer.client is self else trainer.status
            self.kill()
        except OpError as error:
            self.world.tell(f"{self.name} fails with {type(error).__name__}: {error}")
            trainer.errors.append(f"{type(error).__name__}: {error}")
            if not isinstance(error, EXPECTED):
                raise Violation(f"{self.name} fails with {error!r}") from error
            self.crash()
            if trainer.client is self:
                self._note_failure(trainer)
        else:
            self.world.tell(f"{self.name} is {trainer.status}")
            self.kill()

    def _judge_refusal(self, state: dict[str, Any] | None, error: OpError) -> str:
        """The status of a reader that is refused; raises Violation if it must not be refused."""
        if state is None and "was read to its end" in error.message:
            return ENDED  # It was restarted after all other readers had read everything and left.
        if self.trainer.outlived and "begun anew, with other random numbers" in error.message:
            return DEAD  # The dispatcher lost its iteration.
        raise Violation(f"{self.name} fails with {error!r}") from error

    def _read(self, state: dict[str, Any] | None) -> None:
        own, skip = service_part(state)
        stream = self.stream = self._open(own)
        while skip:
            skip -= len(self._pull_values(stream, skip))
        status = self._consume(stream)
        stream.close()
        if self.trainer.client is self:
            self.trainer.status, self.trainer.known = status, self._left

    def _consume(self, stream: CheckedStream) -> str:
        """Reads to the end, or as much as the trainer wants; returns the trainer's status."""
        trainer, random = self.trainer, self.world.random
        while trainer.enough is None or trainer.left > 0:
            mark = stream.save()
            values = self._pull_values(stream, stream.sure(random.choice((1, 4, 64))))
            if not values:
                return ENDED
            mine = trainer.client is self and trainer.enough is not None
            used = values[: trainer.left] if mine else values
            self.world.tell(self.name, "gets", used)
            if trainer.client is self:
                trainer.history += used
            if len(used) < len(values):
                stream.give_back(len(values) - len(used))
                return LEFT
            if self.world.chance(trainer.saves):
                self._save(stream, mark, len(values))
            self.world.wait(trainer.think * random.random() * 2)
        return LEFT

    def _pull_values(self, stream: CheckedStream, limit: int) -> list[int]:
        """The next elements, or the element that fails; none at the end."""
        while True:
            try:
                return values_of(stream.pull(limit))
            except StopIteration:
                return []
            except OutOfRangeError as error:
                return [failed_value(error)]
            except EXPECTED as error:
                final = "reading ends here" in str(error)
                if final or not self.trainer.stubborn or self._failures == MOST_FAILURES:
                    raise
                self._failures += 1
                self.world.tell(f"{self.name} continues after {type(error).__name__}: {error}")

    def _save(self, stream: CheckedStream, mark: Any, count: int) -> None:
        """Keeps a state: of now, or from the middle of the elements that were handed out last."""
        trainer = self.trainer
        used = self.world.random.choice((count, count, self.world.random.randint(0, count)))
        stream.commit()
        at = copy_state(stream.save() if used == count else {"from": mark, "skip": used})
        history = tuple(trainer.history[: len(trainer.history) - count + used])
        if trainer.client is self:
            trainer.saved = SavedState({"plan": trainer.job.plan.digest, "at": at}, history)
            self.world.tell(self.name, "has saved", trainer.saved.state)

    def _open(self, state: dict[str, Any] | None) -> CheckedStream:
        trainer, job = self.trainer, self.trainer.job
        session = Session("dispatcher", None, self._call)  # type: ignore[arg-type]
        request = self._request(self.name, state)
        try:
            opened = session.call(request)
        except NotFoundError:
            trainer.clients.append(f"{self.name}'")
            request = self._request(f"{self.name}'", state)
            opened = session.call(request)
        trainer.form, trainer.streams = opened.work.form, opened.work.streams
        opening = Opening(
            *(session, request, opened, partial(self._again, opened), job.plan.shape),
            *(TREE, job.limits, job.ordered, self._connect, self._extra(request, opened)),
            Machine(self, self._rename),
        )
        stream = CheckedStream(opening, state, lambda: None)
        stream.world, stream.repeats = self.world, self._repeats
        return stream

    def _call(self, request: Any, timeout: float = 30.0) -> Any:
        reply = self.network.call(request, timeout)
        if isinstance(request, Leave):
            self._left = True
        return reply

    def _connect(self, info: WorkerInfo) -> Any:
        return self.network.connect(self, info.transfers["tcp"])

    def _again(self, opened: OpenIterationReply, request: OpenIteration) -> OpenIterationReply:
        self._register_dataset()
        streams = opened.work.streams if opened.work.form in ("share", "whole") else 0
        work, streams = opened.work, max(request.streams, streams)
        again = msgspec.structs.replace(request, key=work.key, epoch=work.epoch, streams=streams)
        return self._call(again)  # type: ignore[no-any-return]

    def _extra(self, request: OpenIteration, opened: OpenIterationReply) -> dict[str, Any]:
        if request.job is None:
            return {}
        key, epoch = opened.work.key, list(opened.work.epoch)
        extra = {"repetition": request.repetition, "clients": [request.client]}
        return {**extra, "key": key, "epoch": epoch}

    def _rename(self, name: str) -> None:
        self.trainer.clients.append(name)

    def _repeats(self, ranges: tuple[StreamRange, ...]) -> None:
        """Notes the elements of this reader that other readers got, too, as the dispatcher says."""
        for at in ranges:
            values = {element(at.stream, ordinal) for ordinal in range(at.start, at.stop)}
            self.trainer.doubtful |= values

    def _register_dataset(self) -> str:
        plan = self.trainer.job.plan
        request = RegisterDataset(
            *(plan.digest, plan.digest, b"spec", plan.shape, plan.cardinality, plan.digest),
            lasting=False,
        )
        return self._call(request).dataset_id  # type: ignore[no-any-return]

    def _request(self, name: str, state: dict[str, Any] | None) -> OpenIteration:
        trainer, job, dataset_id = self.trainer, self.trainer.job, self._register_dataset()
        # Each process draws a key of its own, as processes without seeds do.
        key = (state or {}).get("key", zlib.crc32(self.name.encode()))
        return OpenIteration(
            *(name, job.name, job.repetition, dataset_id, job.options, key, (1,), self.host),
            *(trainer.consumer, trainer.group, tuple((state or {}).get("clients", ()))),
            program=self.name,
            **known_streams(state),
            **(claims_of(state) if state and "held" in state else {}),
        )
