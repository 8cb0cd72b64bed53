"""The caller of `open_plan` opens the parts of a plan that a service computes."""

from dataclasses import replace

import numpy as np
import pytest

from penstock.data.dataset import ENVIRONMENT, Dataset
from penstock.data.iterator import Iterator
from penstock.data.states import check_state
from penstock.element.spec import TensorSpec
from penstock.engine.context import Context
from penstock.engine.contract import Stream
from penstock.engine.lower import open_plan
from penstock.errors import InvalidArgumentError
from penstock.plan import nodes as n
from penstock.plan.functions import Function
from penstock.plan.optimize import prepare
from tests.engine.driving import drain_stream, take_elements


class Service:
    """Opens distributed parts in this process, and records the calls."""

    def __init__(self):
        self.asked = []
        self.environment = replace(ENVIRONMENT, connect=self.connect)

    def connect(self, node, state, context):
        self.asked.append((node, state, context.epoch))
        at = None if state is None else state["own"]
        return OwnStateStream(open_plan(prepare(node.input), at, context))


class OwnStateStream(Stream):
    """A stream whose state has its own format."""

    def __init__(self, stream):
        self.inputs = (stream,)

    def pull(self, limit):
        return self.inputs[0].pull(limit)

    def save(self):
        return {"own": self.inputs[0].save(), "inputs": []}


def distribute_plan(dataset):
    return n.Distribute(dataset.__plan__, "grpc://a:1", 1)


def test_streams_come_from_the_environment():
    service, node = Service(), distribute_plan(Dataset.range(5))
    stream = open_plan(n.Batch(node, 2), None, Context(service.environment))
    assert [x[2] for x in drain_stream(stream, 3)] == [[0, 1], [2, 3], [4]]
    assert service.asked == [(node, None, (0,))]


def test_every_repetition_is_opened_anew():
    service, node = Service(), distribute_plan(Dataset.range(2))
    stream = open_plan(n.Repeat(node, 3), None, Context(service.environment))
    assert len(drain_stream(stream, 9)) == 6
    assert [epoch for _, _, epoch in service.asked][:3] == [(0, 0), (0, 1), (0, 2)]


def test_states_of_a_service_are_saved_and_loaded():
    service = Service()
    plan = n.Take(n.Prefetch(distribute_plan(Dataset.range(9).filter(lambda x: x > 0)), 1), 6)
    whole = take_elements(Iterator(plan, service.environment))
    iterator = Iterator(plan, service.environment)
    for count in range(7):
        state = iterator.state_dict()
        other = Iterator(plan, service.environment)
        other.load_state_dict(state)
        assert take_elements(other) == whole[count:]
        take_elements(iterator, 1)
    iterator.close()


def test_a_position_is_no_state_of_a_stream_of_a_service():
    plan = distribute_plan(Dataset.range(9).filter(bool))
    state = Iterator(plan, ENVIRONMENT).state_dict()
    check_state({**state, "at": {"own": {"any": ["thing"]}, "inputs": []}}, plan, plan)
    with pytest.raises(InvalidArgumentError, match="'at' must hold what the operators saved"):
        check_state({**state, "at": 3}, plan, plan)


# Specs


def pair(x):
    return x, np.float32(0)


def test_specs_are_found_without_a_service():
    service = Service()
    mapped = n.Map(distribute_plan(Dataset.range(3)), Function(pair))
    spec = (TensorSpec([], np.int64), TensorSpec([], np.float32))
    assert ENVIRONMENT.spec(mapped) == spec
    unknown = n.Distribute(None, "grpc://a:1", 1, element=TensorSpec([None], np.int32))
    assert ENVIRONMENT.spec(n.Map(unknown, Function(pair))) == (
        TensorSpec([None], np.int32),
        TensorSpec([], np.float32),
    )
    zipped = Dataset.zip((Dataset(unknown), Dataset.range(3))).map(lambda x, y: y)
    assert zipped.element_spec == TensorSpec([], np.int64)
    assert service.asked == []
