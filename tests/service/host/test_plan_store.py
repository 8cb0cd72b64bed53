import hashlib
import os
import threading

import pytest

from penstock.errors import (
    DataLossError,
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    OpError,
    ResourceExhaustedError,
    UnavailableError,
)
from penstock.service.host.plan_store import PART, PlanStore, TemporaryStorage

PLAN = bytes(range(256)) * 5
DIGEST = hashlib.sha256(PLAN).hexdigest()


@pytest.fixture(params=["folder", "nameless"])
def plans(request, tmp_path):
    made = PlanStore(str(tmp_path / "plans") if request.param == "folder" else None)
    yield made
    made.close()


@pytest.fixture
def folder_plans(tmp_path):
    return PlanStore(str(tmp_path / "plans"))


def send(plans: PlanStore, plan: bytes, size: int = 100) -> None:
    """Sends a plan as a client does."""
    digest = hashlib.sha256(plan).hexdigest()
    offset = plans.put(digest, 0, len(plan), b"")
    while offset < len(plan):
        offset = plans.put(digest, offset, len(plan), plan[offset : offset + size])


def receive_plan(plans: PlanStore, digest: str) -> bytes:
    """Fetches a plan as a worker does."""
    content, total = plans.get(digest)
    while len(content) < total:
        content += plans.get(digest, len(content))[0]
    return content


def test_a_plan_comes_in_parts_and_goes_in_parts(plans):
    large = bytes(PART) + b"end"
    send(plans, PLAN)
    send(plans, large, PART)
    assert receive_plan(plans, DIGEST) == PLAN
    assert receive_plan(plans, hashlib.sha256(large).hexdigest()) == large
    assert DIGEST in plans


def test_a_plan_is_there_only_as_a_whole(plans):
    plans.put(DIGEST, 0, len(PLAN), PLAN[:-1])
    assert DIGEST not in plans
    with pytest.raises(NotFoundError, match="is not known to this dispatcher.*; register the data"):
        plans.get(DIGEST)


def test_parts_may_be_repeated_and_come_too_early(plans):
    assert plans.put(DIGEST, 0, len(PLAN), PLAN[:10]) == 10
    assert plans.put(DIGEST, 0, len(PLAN), PLAN[:10]) == 10
    assert plans.put(DIGEST, 20, len(PLAN), PLAN[20:30]) == 10
    assert plans.put(DIGEST, 10, len(PLAN), PLAN[10:]) == len(PLAN)
    assert plans.put(DIGEST, 10, len(PLAN), PLAN[10:]) == len(PLAN)
    assert receive_plan(plans, DIGEST) == PLAN


def test_many_clients_send_one_plan(plans):
    threads = [threading.Thread(target=send, args=(plans, PLAN, 7)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert receive_plan(plans, DIGEST) == PLAN


def test_plans_survive_and_parts_do_not(folder_plans, tmp_path):
    send(folder_plans, PLAN)
    other = hashlib.sha256(b"other").hexdigest()
    folder_plans.put(other, 0, 5, b"oth")
    again = PlanStore(str(tmp_path / "plans"))
    assert receive_plan(again, DIGEST) == PLAN
    assert again.put(other, 0, 5, b"") == 0
    assert os.listdir(tmp_path / "plans") == [DIGEST]


def test_other_bytes_than_the_digest_says(plans):
    with pytest.raises(DataLossError, match="arrived with other bytes than its digest says; send"):
        plans.put(DIGEST, 0, 3, b"abc")
    assert DIGEST not in plans
    send(plans, PLAN)
    assert receive_plan(plans, DIGEST) == PLAN


def test_a_plan_that_was_changed_on_disk_is_not_given(folder_plans, tmp_path):
    send(folder_plans, PLAN)
    (tmp_path / "plans" / DIGEST).write_bytes(PLAN[:-1] + b"x")
    again = PlanStore(str(tmp_path / "plans"))
    with pytest.raises(NotFoundError, match="is not known"):
        again.get(DIGEST)
    send(again, PLAN)
    assert receive_plan(again, DIGEST) == PLAN


@pytest.mark.parametrize(
    "name", ["", "../../etc/passwd", DIGEST.upper(), DIGEST + "\n", DIGEST[:-1]]
)
def test_names_that_are_no_digests(plans, name):
    with pytest.raises(InvalidArgumentError, match="is not a SHA-256 digest"):
        plans.put(name, 0, 1, b"x")
    with pytest.raises(NotFoundError, match="is not known"):
        plans.get(name)
    assert name not in plans


@pytest.mark.parametrize(("offset", "total"), [(-1, 10), (0, 2), (8, 10), (0, 0)])
def test_parts_that_are_none(plans, offset, total):
    with pytest.raises(InvalidArgumentError, match="are not part of"):
        plans.put(DIGEST, offset, total, b"abc")


def test_two_sizes_of_one_plan(plans):
    plans.put(DIGEST, 0, len(PLAN), PLAN[:10])
    with pytest.raises(InvalidArgumentError, match=f"has {len(PLAN)} bytes, not 20"):
        plans.put(DIGEST, 10, 20, PLAN[:10])
    send(plans, PLAN)
    assert receive_plan(plans, DIGEST) == PLAN


def test_plans_that_are_too_large(tmp_path):
    plans = PlanStore(str(tmp_path / "plans"), largest=100)
    with pytest.raises(
        ResourceExhaustedError, match="a plan of 101 bytes is larger .*; keep large"
    ):
        plans.put(DIGEST, 0, 101, b"")


def test_plans_that_never_arrive_give_way(folder_plans, tmp_path):
    folder_plans.put(DIGEST, 0, len(PLAN), PLAN[:10])
    for number in range(100):
        folder_plans.put(hashlib.sha256(b"%d" % number).hexdigest(), 0, 100, b"x")
    assert len(os.listdir(tmp_path / "plans")) == 64
    assert folder_plans.put(DIGEST, 10, len(PLAN), PLAN[10:20]) == 0


def test_a_full_disk(folder_plans, tmp_path):
    (tmp_path / "plans" / f"{DIGEST}.part").symlink_to("/dev/full")
    with pytest.raises(UnavailableError, match="dispatcher: no space is left for .*; free some"):
        folder_plans.put(DIGEST, 0, len(PLAN), PLAN[:10])
    send(folder_plans, PLAN)
    assert receive_plan(folder_plans, DIGEST) == PLAN


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(FailedPreconditionError, match="leads through a file, not a directory"):
        PlanStore(str(tmp_path / "file" / "plans"))


def test_without_a_folder_nothing_is_left_behind(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    plans = PlanStore()
    send(plans, PLAN)
    assert os.listdir(tmp_path) == []
    plans.close()
    with pytest.raises(OpError, match="the dispatcher was stopped"):
        plans.get(DIGEST)


def bytes_of(plans):
    """The bytes on disk: in `folder`, or in the process's one unnamed file."""
    storage = plans._storage
    if isinstance(storage, TemporaryStorage):
        return os.fstat(storage._descriptor()).st_size
    return sum(entry.stat().st_size for entry in os.scandir(storage.folder))


def test_what_is_forgotten_leaves_no_bytes(plans):
    send(plans, PLAN)
    kept = [bytes([number]) * 1000 for number in range(2)]
    for plan in kept:
        send(plans, plan)
    before = bytes_of(plans)
    for number in range(50):
        short = bytes([number]) * 700 + b"short"
        digest = hashlib.sha256(short).hexdigest()
        send(plans, short)
        assert receive_plan(plans, digest) == short
        if number == 25:
            plans.forget(DIGEST)
        plans.forget(digest)
        assert digest not in plans
    plans.forget("0" * 64)
    assert bytes_of(plans) <= before
    for plan in kept:
        assert receive_plan(plans, hashlib.sha256(plan).hexdigest()) == plan


def test_a_plan_that_is_sent_again_meanwhile_is_not_forgotten(plans):
    plans.put(DIGEST, 0, len(PLAN), PLAN[:100])
    plans.forget(DIGEST)
    plans.put(DIGEST, 100, len(PLAN), PLAN[100:])
    assert receive_plan(plans, DIGEST) == PLAN


def test_strays_are_plans_that_no_dataset_has(plans):
    send(plans, PLAN)
    send(plans, b"known")
    known = hashlib.sha256(b"known").hexdigest()
    assert plans.find_unknown(lambda digest: digest == known) == [DIGEST]
