"""Plans and specs without pickles: they decode to what was encoded, and run no foreign code."""

import contextlib
import functools
import json
import os
import sys
from collections import namedtuple
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import Ragged
from penstock.data import Dataset, Options, TextLineDataset
from penstock.data.dataset import ENVIRONMENT
from penstock.element.spec import (
    DatasetSpec,
    NoneTensorSpec,
    OptionalSpec,
    RaggedTensorSpec,
    TensorSpec,
)
from penstock.errors import (
    DataLossError,
    FailedPreconditionError,
    InvalidArgumentError,
    PermissionDeniedError,
)
from penstock.plan import nodes as n
from penstock.plan.codec import decode, encode, fingerprint
from penstock.plan.functions import Function
from penstock.plan.options import AutoShardPolicy
from penstock.plan.references import (
    decode_by_reference,
    decode_spec,
    encode_by_reference,
    encode_spec,
)
from tests.conformance.random_plans import plans
from tests.effort import examples
from tests.engine.driving import take_elements

HERE = (__name__, "tests", "numpy")
Pair = namedtuple("Pair", "x y")
system = os.system


@dataclass
class Place:
    x: Any
    y: Any


class Maker:
    """Holds functions."""

    @staticmethod
    def double(x):
        return x * 2

    @classmethod
    def triple(cls, x):
        return x * 3

    def half(self, x):
        return x // 2


def scale_number(factor, x, shift=0):
    return x * factor + shift


def is_large(x):
    return x > 1


def numbers(stop):
    yield from range(stop)


def send_plan(plan, modules=HERE):
    return decode_by_reference(encode_by_reference(plan), modules)


def datasets():
    ten = Dataset.range(10)
    return [
        ten,
        ten.map(np.square).batch(3, drop_remainder=True),
        ten.map(functools.partial(scale_number, np.int64(3), shift=1)),
        ten.map(Maker.double).map(Maker.triple),
        ten.filter(is_large).shuffle(4, seed=1).repeat(2),
        ten.enumerate(),
        Dataset.from_generator(numbers, args=(4,), output_types=np.int64),
        Dataset.from_tensor_slices({"a": [1.5, 2.5], "b": ["x", "y"]}),
        Dataset.from_tensor_slices(Pair([1, 2], [3, 4])),
        Dataset.from_tensor_slices(Place([1, 2], [3, 4])),
        Dataset.from_tensor_slices(Ragged.from_rows([[1], [2, 3]])),
        Dataset.from_tensor_slices(np.zeros((3, 0, 2), np.float16)),
        Dataset.from_tensor_slices(np.array([1, 2], np.dtype(np.int32).newbyteorder())),
        Dataset.from_tensors((np.bool_(True), b"\xff\x00")),
        Dataset.zip({"a": ten, "b": (ten, ten)}),
        Dataset.choose_from_datasets([ten, ten], Dataset.range(2)),
        ten.padded_batch(4, padded_shapes=[], padding_values=np.int64(7)),
        ten.window(3),
        ten.cache(),
        TextLineDataset(["a", "b"], num_parallel_reads=2),
        ten.with_options(Options(deterministic=False)),
        Dataset(n.Distribute(ten.__plan__, "grpc://x:1", 1, element=TensorSpec((), np.int64))),
    ]


@pytest.mark.parametrize("number", range(len(datasets())))
def test_plans_travel(number):
    plan = datasets()[number].__plan__
    assert fingerprint(send_plan(plan)) == fingerprint(plan)


def add_key(x):
    return {"early": x} if x < 2 else {"late": x}


@pytest.mark.parametrize("send", [send_plan, lambda plan: decode(encode(plan))])
def test_plans_travel_with_what_their_functions_were_seen_to_return(send):
    made = Dataset.range(9).map(add_key)
    assert send(made.__plan__).function.returns is None
    assert made.element_spec
    assert made.__plan__.function.returns is None
    sent = send(send(made.__plan__))
    assert sent.function.returns == (0, "{'early': int64}", None)
    with pytest.raises(InvalidArgumentError, match=r"'early': int64} for element 0 but {'late'"):
        next(iter(Dataset(sent.with_inputs((Dataset.range(5, 9).__plan__,)))))


def test_travelled_plans_give_the_same_elements():
    for dataset in datasets()[:-3]:
        if dataset.__plan__.label == "interleave":
            continue
        again = Dataset(send_plan(dataset.__plan__))
        assert take_elements(iter(again)) == take_elements(iter(dataset))
        assert again.element_spec == dataset.element_spec


@examples(100)
@given(plans())
def test_random_plans_travel(plan):
    assert fingerprint(send_plan(plan, ("tests", "builtins"))) == fingerprint(plan)


def test_options_travel():
    options = Options(deterministic=True, framework_type=["x"])
    options.experimental_distribute.auto_shard_policy = AutoShardPolicy.FILE
    options.service.stateful = "per_worker"
    plan = Dataset.range(3).with_options(options).__plan__
    assert send_plan(plan) == plan


def test_data_stays_read_only():
    again = send_plan(Dataset.from_tensor_slices(np.arange(3)).__plan__)
    assert not again.data.chunk.columns[0].flags.writeable


# Functions that have no name


def local():
    def inner(x):
        return x

    return inner


@pytest.mark.parametrize(
    "call",
    [lambda x: x, local(), Maker().half, functools.partial(Maker().half)],
    ids=["lambda", "local", "method", "partial"],
)
def test_functions_without_a_name_are_refused(call):
    plan = n.Map(Dataset.range(3).__plan__, Function(call))
    with pytest.raises(InvalidArgumentError, match=r"Dataset.map: .* has no name .*; define it wi"):
        encode_by_reference(plan)


def test_the_place_of_a_function_is_named():
    with pytest.raises(InvalidArgumentError, match=r"<lambda> at test_references.py:\d+ has no na"):
        encode_by_reference(Dataset.range(3).map(lambda x: x).__plan__)


def test_functions_of_main_are_refused(monkeypatch):
    monkeypatch.setattr(is_large, "__module__", "__main__")
    monkeypatch.setattr(sys.modules["__main__"], "is_large", is_large, raising=False)
    with pytest.raises(InvalidArgumentError, match=r"is_large at .* \(not in __main__"):
        encode_by_reference(Dataset.range(3).filter(is_large).__plan__)


def test_partials_hold_plain_values():
    plan = Dataset.range(3).map(functools.partial(scale_number, Maker())).__plan__
    with pytest.raises(
        InvalidArgumentError, match="scale_number at .* is a partial with .*a Maker cannot"
    ):
        encode_by_reference(plan)


def test_elements_that_hold_datasets_are_refused():
    plan = Dataset.from_tensors(Dataset.range(3)).__plan__
    with pytest.raises(
        InvalidArgumentError, match=r"from_tensors: a Dataset cannot be sent without"
    ):
        encode_by_reference(plan)
    odd = n.Generator(Function(numbers), (np.array(["2020"], "datetime64[D]"),), None)
    with pytest.raises(InvalidArgumentError, match="an array of datetime64.* cannot be sent"):
        encode_by_reference(odd)


# Functions that may not be called


def forge_plan(name):
    """A plan that names another function than it was written with."""
    data = encode_by_reference(Dataset.range(3).filter(is_large).__plan__)
    header, _, body = data.partition(b"\n")
    length = int.from_bytes(body[:8], "little")
    text = (
        json.dumps(json.loads(body[8 : 8 + length])).replace(f"{__name__}:is_large", name).encode()
    )
    return b"".join([header, b"\n", len(text).to_bytes(8, "little"), text, body[8 + length :]])


@pytest.mark.parametrize(
    ("name", "module"),
    [
        ("os:system", "os"),
        (f"{__name__}:system", "posix"),
        (f"{__name__}x:f", f"{__name__}x"),
        ("builtins:eval", "builtins"),
        ("penstock.data.dataset:_from_bytes", "penstock.data.dataset"),
        ("test:f", "test"),
    ],
)
def test_functions_of_other_modules_are_refused(name, module):
    words = rf"is a function of the module {module}, which is not among .* \({__name__}\); start"
    with pytest.raises(PermissionDeniedError, match=words):
        decode_by_reference(forge_plan(name), (__name__,))


def test_a_refused_module_is_not_imported(tmp_path, monkeypatch):
    (tmp_path / "harmful_module.py").write_text("raise AssertionError('it was imported')")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(PermissionDeniedError, match=r"\(none\)"):
        decode_by_reference(forge_plan("harmful_module:f"), ())
    with pytest.raises(FailedPreconditionError, match="cannot be imported here: it was imported"):
        decode_by_reference(forge_plan("harmful_module:f"), ("harmful_module",))


@pytest.mark.parametrize(
    "name",
    [
        "missing",
        "os.system",
        "os",
        "kept.__globals__.get",
        "kept.__call__",
        "Maker.__subclasses__",
        "HERE",
        "Maker.missing",
    ],
)
def test_names_that_lead_to_no_function_are_refused(name):
    with pytest.raises(FailedPreconditionError, match="there is no function .* here") as caught:
        decode_by_reference(forge_plan(f"{__name__}:{name}"), HERE)
    assert isinstance(caught.value.__cause__, AttributeError)


def test_a_module_that_is_not_here_is_named():
    with pytest.raises(FailedPreconditionError, match="the module nowhere.x cannot be") as caught:
        decode_by_reference(forge_plan("nowhere.x:f"), ("nowhere",))
    assert isinstance(caught.value.__cause__, ModuleNotFoundError)


def test_classes_of_elements_are_found_or_refused(monkeypatch):
    data = encode_by_reference(Dataset.from_tensor_slices(Place([1], [2])).__plan__)
    hidden = data.replace(__name__.encode(), b"x" * len(__name__))
    with pytest.raises(PermissionDeniedError, match=r"x\.Place is a function of the module x+,"):
        decode_by_reference(hidden, (__name__,))
    with pytest.raises(FailedPreconditionError, match=r"the module x+ cannot be imported here"):
        decode_by_reference(hidden, ("x" * len(__name__),))


# Damage


GOOD = encode_by_reference(Dataset.from_tensor_slices([1, 2]).map(np.square).batch(2).__plan__)


def test_garbage_is_refused():
    for data in (b"", b"hello", GOOD[:20], GOOD[:40], GOOD[:-1], b"penstock references 2\n"):
        with pytest.raises(
            DataLossError, match="decode_by_reference: (not a plan that|the plan is)"
        ):
            decode_by_reference(data, HERE)
    with pytest.raises(DataLossError, match="decode_spec: not a spec that this version wrote"):
        decode_spec(GOOD)


def test_a_field_of_a_newer_penstock_is_refused():
    body = b'{"node":["Take",{"what":1}]}'
    data = b"penstock references 1\n" + len(body).to_bytes(8, "little") + body
    message = "Dataset.Take: the plan sets what, of which this version .* not know all; upgrade"
    with pytest.raises(FailedPreconditionError, match=message):
        decode_by_reference(data, HERE)


@pytest.mark.parametrize(
    "text",
    [
        "5",
        '{"node":["Node",{}]}',
        '{"node":["Nothing",{}]}',
        '{"node":["Take",{"count":1}]}',
        '{"node":["Take"]}',
        '{"value":1}',
        '{"made":["node",1]}',
        '{"a":1,"b":2}',
        '{"options":["Options",{"what":1}]}',
        '{"enum":["os",1]}',
        '{"array":["int64",[2],[0,800]]}',
        '{"array":["int64",[2],[-8,8]]}',
        '{"array":["object",[1],[0,0]]}',
        '{"function":"a"}',
        '{"function":5}',
        '{"data":["*",[{"array":["int64",[0],[0,0]]}],3]}',
        '{"data":["*",[],0]}',
        "[" * 100_000,
        '{"list":[' * 5_000 + "]}" * 5_000,
    ],
)
def test_what_describes_no_plan_is_refused(text):
    body = text.encode()
    data = b"penstock references 1\n" + len(body).to_bytes(8, "little") + body
    with pytest.raises(
        DataLossError, match="decode_by_reference: (the plan is damaged|not a plan)"
    ):
        decode_by_reference(data, HERE)


@examples(300)
@given(st.data())
def test_damaged_bytes_are_refused_or_a_plan(data):
    """If a few bytes change, decoding returns a plan or raises one of our errors."""
    damaged = bytearray(GOOD)
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, len(GOOD) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(DataLossError, PermissionDeniedError, FailedPreconditionError):
        assert isinstance(decode_by_reference(bytes(damaged), HERE), n.Node)


# Specs


@pytest.mark.parametrize(
    "spec",
    [
        TensorSpec([None, 2], np.int32, "x"),
        TensorSpec(None, "bfloat16"),
        (TensorSpec([], str), {"b": RaggedTensorSpec([None, None], np.float32), "a": ()}),
        Pair(TensorSpec([]), NoneTensorSpec()),
        Place(TensorSpec([]), (RaggedTensorSpec([3], np.int64, 0),)),
        DatasetSpec((TensorSpec([]), DatasetSpec(TensorSpec([])))),
        OptionalSpec({"a": TensorSpec([])}),
    ],
)
def test_specs_travel(spec):
    again = decode_spec(encode_spec(spec))
    assert again == spec
    assert type(again) is type(spec)


def test_specs_of_classes_that_are_not_here():
    data = encode_spec(Pair(TensorSpec([]), TensorSpec([])))
    again = decode_spec(data.replace(__name__.encode(), b"x" * len(__name__)))
    assert tuple(again) == (TensorSpec([]), TensorSpec([]))
    assert type(again)._fields == ("x", "y")
    data = encode_spec(Place(TensorSpec([]), TensorSpec([])))
    with pytest.raises(FailedPreconditionError, match="import that module first"):
        decode_spec(data.replace(__name__.encode(), b"x" * len(__name__)))


def test_what_is_no_spec_is_refused():
    with pytest.raises(InvalidArgumentError, match="element_spec: a Maker cannot be sent without"):
        encode_spec(Maker())
    with pytest.raises(InvalidArgumentError, match="element_spec: the dict key"):
        encode_spec({Pair(1, 2): TensorSpec([])})
    assert ENVIRONMENT.spec(Dataset.range(3).__plan__) == TensorSpec([], np.int64)
