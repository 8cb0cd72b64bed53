"""Connecting: a `Distribute` node becomes a stream of elements that workers compute.

A plan whose operators need all elements in one place is cut: workers compute what can be divided,
the client computes the rest.
"""

from __future__ import annotations

import logging
import os
import uuid
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import msgspec

from penstock.element import nest
from penstock.element.spec import DatasetSpec
from penstock.engine.context import Context
from penstock.engine.contract import State, Stream, copy_state
from penstock.engine.figures import Figures, WorkerFigures, own_seconds
from penstock.engine.lower import open_plan
from penstock.engine.meters import Meters
from penstock.engine.tuning import reader_budget
from penstock.errors import FailedPreconditionError, InvalidArgumentError, NotFoundError
from penstock.plan import nodes
from penstock.plan.cuts import cut, has_one_reader
from penstock.plan.nodes import Node, options_of
from penstock.plan.optimize import prepare
from penstock.plan.options import Options, ShardingPolicy
from penstock.plan.resume import seeds_of, with_seeds
from penstock.plan.shape import Form
from penstock.plan.shard import in_order
from penstock.service.host.data_client import connect_data
from penstock.service.host.data_connection import Connection
from penstock.service.host.plan_store import ArrayUploads
from penstock.service.host.remote_stream import Opening, RemoteStream
from penstock.service.host.services import HOME, REGISTERED_SEEDS, Session, borrow, retry_forgotten
from penstock.service.host.sockets import on_error
from penstock.service.logic.client import claims_of, known_streams, state_at
from penstock.service.logic.feeds import Limits
from penstock.service.protocol.messages import (
    Bottleneck,
    DatasetInfo,
    JobOptions,
    OpenIteration,
    OpenIterationReply,
    WorkerInfo,
)

_LOG = logging.getLogger("penstock.service")

_PROGRAM = uuid.uuid4().hex
"""A name of this process, together with the process id, which differs in forked children."""


def _with_inner_service(plan: Node) -> Node:
    """The plan as workers run it for several readers: operators that need all elements in one
    place run on one worker, which reads what the other workers compute."""
    local, reason = cut(
        plan, lambda part: nodes.Distribute(part, HOME, int(ShardingPolicy.DYNAMIC))
    )
    return plan if reason is None else local


def connect(node: Node, state: State, context: Context, home: Session | None = None) -> Stream:
    """The stream of a `Distribute` node, from a state (None: the start).

    A state that is a position was saved by the same plan without a service, with random access.
    """
    assert isinstance(node, nodes.Distribute)
    plan = node.input
    if plan is not None and has_one_reader(node, context.options):
        local, reason = cut(plan, lambda part: replace(node, input=part, dataset_id=None))
        if reason is not None:
            return open_plan(_local_part(node, local, context), state, _require_order(context))
    if isinstance(state, int):
        return _Opener(node, context, home).open(state_at(state))
    return _Opener(node, context, home).open(None if state is None else copy_state(state["own"]))


def _local_part(node: nodes.Distribute, local: Node, context: Context) -> Node:
    """What this process runs of a plan that was cut: the same nodes, whenever it is opened, so
    that their meters continue to count."""
    meter = context.meters.of(node)
    if meter is None:
        return prepare(_with_order(local))
    if meter.below is None:
        meter.below = prepare(_with_order(local))
    return meter.below


def _with_order(plan: Node) -> Node:
    """The client's part of a plan, with elements in order. The plan was cut because operators
    depend on the order of their elements: without it, they would return other elements."""
    return in_order(plan) if options_of(plan).deterministic is False else plan


def _require_order(context: Context) -> Context:
    if context.options.deterministic is not False:
        return context
    return replace(context, options=context.options.merge(Options(deterministic=True)))


class _Opener:
    """Opens an iteration, and opens it again if the dispatcher has forgotten it.

    Another reader may have opened the iteration first, with other seeds; this one adopts them.
    """

    def __init__(self, node: nodes.Distribute, context: Context, home: Session | None) -> None:
        self._node = node
        self._context = context
        self._shared = borrow(node, home)
        self._session = self._shared.service.session
        shared_job = node.job_name is not None and not self._session.local
        self._arrays = self._shared.arrays.add_user(by_content=shared_job)
        self._uploads: ArrayUploads | None = None
        self._spec = context.environment.spec(node)
        leaves, self._tree = nest.flatten(self._spec)
        if any(isinstance(leaf, DatasetSpec) for leaf in leaves):
            raise FailedPreconditionError(
                "distribute: elements that hold datasets cannot travel; flat_map the windows into "
                "elements before distribute"
            )
        self._options = options_of(node).merge(context.options)
        self._input = node.input

    def open(self, state: dict[str, Any] | None) -> Stream:
        with on_error(self._leave):
            return self._open_iteration(state)

    def _leave(self) -> None:
        if self._uploads is not None:
            self._uploads.close()
        self._arrays.close()
        self._shared.leave()

    def _open_iteration(self, state: dict[str, Any] | None) -> Stream:
        node = self._node
        self._check_state(state)
        self._adopt_seeds((state or {}).get("seeds"))
        info, request, opened = self._call_dispatcher(state)
        self._adopt_seeds(opened.seeds)
        if opened.warning:
            _LOG.warning("%s", opened.warning)
        if opened.repetition != request.repetition:
            node.iterations.resume(opened.repetition)
        request = msgspec.structs.replace(request, repetition=opened.repetition, endless=False)
        self._patience = opened.worker_timeout
        opening = Opening(
            session=self._session,
            request=request,
            opened=opened,
            again=lambda again: self._open_again(again, opened),
            shape=info.shape,
            tree=self._tree,
            limits=Limits(
                elements=node.max_outstanding if (node.max_outstanding or 0) > 0 else None,
                budget=reader_budget(self._options),
            ),
            ordered=self._options.deterministic is not False,
            connect=partial(self._connect, bytes.fromhex(opened.work.digest)),
            extra=self._extra(request, opened),
            figures=(figures := _worker_figures(node, self._context)),
            take_signs=ReaderSigns(self._context.meters, figures).take,
        )
        return RemoteStream(opening, state, self._leave)

    def _call_dispatcher(
        self, state: dict[str, Any] | None
    ) -> tuple[DatasetInfo, OpenIteration, OpenIterationReply]:
        """Opens the iteration of a dataset, which it registers if necessary."""

        def send() -> tuple[DatasetInfo, OpenIteration, OpenIterationReply]:
            info = self._dataset()
            request = self._request(state, info.dataset_id)
            return info, request, self._session.call(request)

        return send() if self._node.input is None else retry_forgotten(send, NotFoundError)

    def _check_state(self, state: dict[str, Any] | None) -> None:
        if state is None:
            return
        leased = self._node.job_name is not None and not self._node.num_consumers
        if ("held" if leased else "order") not in state:
            raise InvalidArgumentError(
                "Iterator.load_state_dict: the state is that of a distributed dataset "
                f"{'without' if leased else 'with'} a job_name, and this one is "
                f"{'with' if leased else 'without'} one; distribute it as it was when it was saved"
            )

    def _dataset(self) -> DatasetInfo:
        """The dataset as the dispatcher knows it; registers it if necessary."""
        node, session = self._node, self._session
        if self._input is None:
            assert node.dataset_id is not None
            return session.dataset(node.dataset_id)
        if node.dataset_id is not None and self._plan() is self._input:
            seeds = REGISTERED_SEEDS.get((session.address, node.dataset_id))
            if seeds == seeds_of(self._input):
                try:
                    return session.dataset(node.dataset_id)
                except NotFoundError:
                    pass  # Its last reader has left, or the dispatcher has lost its journal.
        return self._register()

    def _adopt_seeds(self, seeds: Sequence[int] | None) -> None:
        if self._input is not None and seeds is not None:
            self._input = with_seeds(self._input, list(seeds))

    def _register(self) -> DatasetInfo:
        registered = self._session.register(
            self._plan(), self._spec, again=False, refer=self._arrays.refer
        )
        if self._arrays.offers and self._uploads is None and not self._session.local:
            self._uploads = ArrayUploads(self._session.call, self._arrays.offers)
        return self._session.dataset(registered)

    def _plan(self) -> Node:
        """What workers run. For several readers, one worker runs what cannot be divided."""
        plan = self._input
        assert plan is not None
        divided = self._node.mode == ShardingPolicy.DYNAMIC and not self._per_worker
        if divided and not has_one_reader(self._node, self._context.options):
            return _with_inner_service(plan)
        return plan

    @property
    def _per_worker(self) -> bool:
        return self._options.service.stateful == "per_worker"

    def _open_again(self, request: OpenIteration, before: OpenIterationReply) -> OpenIterationReply:
        """Opens the iteration once more, at a dispatcher that may not know the dataset.

        What workers share is divided into as many streams as before.
        """
        try:
            dataset_id = retry_forgotten(self._dataset, NotFoundError).dataset_id
        except NotFoundError as error:
            raise FailedPreconditionError(error.message) from None
        streams = before.work.streams if before.work.form in (Form.SHARE, Form.WHOLE) else 0
        again = msgspec.structs.replace(
            request,
            dataset_id=dataset_id,
            key=before.work.key,
            epoch=before.work.epoch,
            streams=max(request.streams, streams),
        )
        opened: OpenIterationReply = self._session.call(again)
        return opened

    def _request(self, state: dict[str, Any] | None, dataset_id: str) -> OpenIteration:
        node, context = self._node, self._context
        return OpenIteration(
            client=uuid.uuid4().hex,
            job=node.job_name,
            repetition=self._repetition(state),
            dataset_id=dataset_id,
            options=self._job_options(),
            key=context.key if state is None else state.get("key", context.key),
            epoch=context.epoch if state is None else tuple(state.get("epoch", context.epoch)),
            host=self._session.own_host,
            consumer=-1 if node.consumer_index is None else node.consumer_index,
            group=node.trainer or "",
            resumes=tuple(state.get("clients", ())) if state else (),
            program=f"{_PROGRAM}-{os.getpid()}",
            by_id=node.input is None,
            endless=context.endless,
            **known_streams(state),
            **(claims_of(state) if state and "held" in state else {}),
        )

    def _repetition(self, state: dict[str, Any] | None) -> int:
        repetitions = self._node.iterations
        if state is None or "repetition" not in state:
            return repetitions.begin()
        repetitions.resume(state["repetition"])
        return int(state["repetition"])

    def _job_options(self) -> JobOptions:
        node = self._node
        return JobOptions(
            mode=int(node.mode),
            consumers=node.num_consumers or 0,
            target=node.target,
            cached=node.trainer is not None,
            per_worker=self._per_worker,
        )

    def _extra(self, request: OpenIteration, opened: OpenIterationReply) -> dict[str, Any]:
        """What a state of a named job has besides ranges: the iteration and the client id."""
        if request.job is None:
            return {}
        return {
            "repetition": request.repetition,
            "clients": [request.client],
            "key": opened.work.key,
            "epoch": list(opened.work.epoch),
            "seeds": None if opened.seeds is None else list(opened.seeds),
        }

    def _connect(self, plan: bytes, info: WorkerInfo) -> Connection:
        node, session = self._node, self._session
        if self._uploads is not None and info.host != session.own_host:
            self._uploads.hurry()
        return connect_data(
            info,
            session.security,
            protocol=node.transfer,
            own_host=session.own_host,
            compression=node.compression,
            plan=plan,
            patience=self._patience,
        )


def _worker_figures(node: nodes.Distribute, context: Context) -> WorkerFigures | None:
    meter = context.meters.of(node)
    if meter is None:
        return None
    meter.workers = meter.workers or WorkerFigures()
    return meter.workers


# What a reader reports to the dispatcher about its bottleneck

_LONGEST_NAME = 120
"""Characters of the longest name of an operator that is sent."""


class ReaderSigns:
    """What one reader knows about its bottleneck, for its heartbeats. Used by one thread.

    It reads meters that other threads write; a figure that is a moment old does no harm.
    """

    def __init__(self, meters: Meters, figures: WorkerFigures | None) -> None:
        self._meters, self._figures = meters, figures
        self._delivered = 0.0

    def take(self) -> Bottleneck:
        """The slowest operator on the workers, and what was delivered since the last call."""
        delivered = measure_delivery(self._meters)
        before, self._delivered = self._delivered, delivered
        rows = [] if self._figures is None else list(self._figures.rows())
        place, operator = find_slowest(rows)
        return Bottleneck(place, operator, max(0.0, delivered - before))


def find_slowest(rows: list[Figures]) -> tuple[str, str]:
    """The operator with the most time of its own, in words, after its place.

    Its place is `source` if it reads what no operator hands to it, `function` if it calls a user's
    function, else `operator`. Both are empty if nothing is known.
    """
    own = own_seconds(rows)
    if not any(own):
        return "", ""
    number = own.index(max(own))
    row = rows[number]
    below = rows[number + 1] if number + 1 < len(rows) else None
    name = f"{row.operator}({row.function})" if row.function else row.operator
    if below is None or below.depth <= row.depth:
        return "source", name[:_LONGEST_NAME]
    return "function" if row.function else "operator", name[:_LONGEST_NAME]


def measure_delivery(meters: Meters) -> float:
    """Seconds in which elements were brought to devices, as far as that is certain.

    The time of a stage includes that of the plan below it. An operator that runs ahead may have
    more time than the stage; then the rest is 0.
    """
    stages = sum(meter.seconds for meter in list(meters.stages.values()))
    below = max((meter.seconds for meter in list(meters.by_node.values())), default=0.0)
    return max(0.0, stages - below)
