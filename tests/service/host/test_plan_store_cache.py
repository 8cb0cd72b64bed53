"""A worker's plans: fetched by digest, checked, decoded once."""

import hashlib
import subprocess
import sys
import threading

import pytest

from penstock.element.dtypes import int64
from penstock.errors import (
    DataLossError,
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    PermissionDeniedError,
)
from penstock.plan import nodes as n
from penstock.plan.codec import encode
from penstock.plan.functions import Function
from penstock.plan.references import encode_by_reference
from penstock.service.host import plan_store
from penstock.service.host.plan_store import PlanCache, make_decoder
from penstock.service.protocol.messages import GetPlan, GetPlanReply

PLAN = n.Range(0, 5, 1, int64)


class Dispatcher:
    """Serves plans in parts, and counts the requests."""

    def __init__(self, *plans: bytes, part: int = 100) -> None:
        self.plans = {hashlib.sha256(plan).hexdigest(): plan for plan in plans}
        self.part = part
        self.asked = 0

    def call(self, request: GetPlan) -> GetPlanReply:
        self.asked += 1
        if request.digest not in self.plans:
            raise NotFoundError(f"no plan {request.digest}")
        data = self.plans[request.digest]
        return GetPlanReply(data[request.offset : request.offset + self.part], len(data))


def plans_of(dispatcher: Dispatcher, *how: object) -> PlanCache:
    return PlanCache(dispatcher.call, make_decoder(*(how or ("by_value", ()))), "host:1")


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def test_a_plan_is_fetched_in_parts_and_once():
    data = encode(PLAN)
    dispatcher = Dispatcher(data)
    plans = plans_of(dispatcher)
    assert plans.get(digest(data)) == PLAN
    assert dispatcher.asked == -(-len(data) // 100)
    assert plans.get(digest(data)) is plans.get(digest(data))
    assert dispatcher.asked == -(-len(data) // 100)


def test_many_threads_fetch_it_once():
    data = encode(PLAN)
    dispatcher = Dispatcher(data, part=len(data))
    plans = plans_of(dispatcher)
    threads = [threading.Thread(target=plans.get, args=(digest(data),)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert dispatcher.asked == 1


def test_old_plans_are_forgotten(monkeypatch):
    monkeypatch.setattr(plan_store, "_MOST_PLANS", 2)
    all_of_them = [encode(n.Range(0, stop, 1, int64)) for stop in range(3)]
    dispatcher = Dispatcher(*all_of_them, part=1 << 20)
    plans = plans_of(dispatcher)
    for data in [*all_of_them, all_of_them[2], all_of_them[0]]:
        plans.get(digest(data))
    assert dispatcher.asked == 4


@pytest.mark.parametrize("change", [lambda d: d[:-1], lambda d: b"x" + d[1:], lambda d: b""])
def test_other_bytes_are_refused_before_they_are_decoded(change):
    data = encode(PLAN)
    dispatcher = Dispatcher(data)
    dispatcher.plans[digest(data)] = change(data)
    with pytest.raises(
        DataLossError, match=f"worker host:1 do not have the digest {digest(data)[:12]}"
    ):
        plans_of(dispatcher).get(digest(data))


def test_what_the_dispatcher_does_not_know_is_asked_for_again():
    dispatcher = Dispatcher()
    plans = plans_of(dispatcher)
    for _ in range(2):
        with pytest.raises(NotFoundError, match="no plan abc"):
            plans.get("abc")
    assert dispatcher.asked == 2


def test_a_plan_of_another_version_is_refused():
    data = b"penstock plan 99\nfuture"
    with pytest.raises(InvalidArgumentError, match="not a plan of version"):
        plans_of(Dispatcher(data)).get(digest(data))


MODULE = "def f(x):\n    return x\n"
PROGRAM = """
import sys
sys.path.insert(0, sys.argv[1])
import only_there
from penstock.element.dtypes import int64
from penstock.plan import nodes as n
from penstock.plan.codec import encode
from penstock.plan.functions import Function
plan = n.Map(n.Range(0, 5, 1, int64), Function(only_there.f))
sys.stdout.buffer.write(encode(plan))
"""


@pytest.fixture
def foreign(tmp_path) -> bytes:
    """A plan with a function of a module that this process does not have."""
    (tmp_path / "only_there.py").write_text(MODULE)
    command = [sys.executable, "-c", PROGRAM, str(tmp_path)]
    return subprocess.run(command, check=True, capture_output=True).stdout


def test_a_missing_module_is_named_with_what_to_do(foreign):
    with pytest.raises(
        FailedPreconditionError,
        match="worker host:1 has no module 'only_there', which this dataset needs; install it",
    ):
        plans_of(Dispatcher(foreign)).get(digest(foreign))


def test_another_version_of_a_module_is_named(foreign, tmp_path, monkeypatch):
    (tmp_path / "only_there.py").write_text("g = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(FailedPreconditionError, match="another version of a module .*'f'"):
        plans_of(Dispatcher(foreign)).get(digest(foreign))
    sys.modules.pop("only_there", None)


def test_by_reference_nothing_is_unpickled():
    data = encode(PLAN)
    with pytest.raises(DataLossError, match="decode_by_reference: not a plan"):
        plans_of(Dispatcher(data), "by_reference", ("operator",)).get(digest(data))


def test_by_reference_only_functions_of_given_modules_are_run():
    data = encode_by_reference(n.Map(PLAN, Function(digest)))
    allowed = plans_of(Dispatcher(data), "by_reference", (__name__,))
    assert allowed.get(digest(data)).function.call is digest
    with pytest.raises(PermissionDeniedError, match="not among the modules of this worker"):
        plans_of(Dispatcher(data), "by_reference", ("operator",)).get(digest(data))


@pytest.mark.parametrize("name", ["no_such_module", "no_such.module", ""])
def test_modules_that_do_not_exist_raise_at_once(name: str) -> None:
    with pytest.raises(InvalidArgumentError, match="worker: there is no module"):
        make_decoder("by_reference", (name,))
