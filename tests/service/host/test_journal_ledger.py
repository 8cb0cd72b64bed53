"""The ledger: replies wait until their facts are on disk, and a full disk changes no state."""

import json
import shutil
import threading
from typing import Any

import msgspec
import pytest

from penstock.errors import NotFoundError, UnavailableError
from penstock.plan.shape import Shape
from penstock.service.host import journal as journals
from penstock.service.host.journal import Ledger
from penstock.service.logic.dispatcher import snapshot
from penstock.service.logic.state import Settings
from penstock.service.protocol.messages import (
    ClientHeartbeat,
    JobOptions,
    Lease,
    OpenIteration,
    RegisterDataset,
    Request,
    StreamRange,
)
from tests.integration.clusters import until
from tests.service.host.recorded_journals.record import FOLDER, describe

REGISTER = RegisterDataset("digest", "s", b"spec", Shape("random", length=10**9), 10**9, "data")
OPEN = OpenIteration("c", "job", 0, "data", JobOptions(1), 7, (1,))


def make_ledger(path, name: str = "d") -> Ledger:
    return Ledger(Settings(dispatcher=name), str(path / "journal"))


def answer(ledger: Ledger, request: Request) -> Any:
    """Decides about a request, and returns the reply once its facts are on disk."""
    reply = ledger.decide(request)
    ledger.sync()
    return reply


@pytest.fixture
def ledger(tmp_path):
    """A ledger with a reader of a named job."""
    ledger = make_ledger(tmp_path)
    answer(ledger, REGISTER)
    answer(ledger, OPEN)
    yield ledger
    ledger.close()


def ranges(leased) -> list[StreamRange]:
    return [grant.range for grant in leased.grants]


def test_an_answer_is_out_when_its_facts_are_on_disk(ledger, monkeypatch):
    events = []

    def sync(descriptor: int) -> None:
        events.append(len(snapshot(ledger._state)[-2].ranges))

    monkeypatch.setattr(journals, "_sync", sync)
    leased = answer(ledger, Lease("c", 1, 10))
    assert ranges(leased) == [StreamRange(0, 0, 10)]
    answer(ledger, ClientHeartbeat("c", 1))
    assert events == [1], "a beat without facts waits for nothing"


def test_requests_are_decided_while_other_requests_wait_for_the_disk(ledger, monkeypatch):
    waiting, go_on, answers, calls = threading.Semaphore(0), threading.Event(), {}, []

    def sync(descriptor: int) -> None:
        calls.append(1)
        waiting.release()
        assert go_on.wait(60)

    for number in range(8):
        answer(ledger, msgspec.structs.replace(OPEN, client=f"c{number}"))
    monkeypatch.setattr(journals, "_sync", sync)

    def lease(number: int) -> None:
        answers[number] = answer(ledger, Lease(f"c{number}", 1, 10))

    threads = [threading.Thread(target=lease, args=(number,)) for number in range(8)]
    threads[0].start()
    assert waiting.acquire(timeout=60)
    for thread in threads[1:]:
        thread.start()
    until(lambda: ledger._state.iterations["d/0"].groups[""].tracks[0].reached == 80)
    assert not answers
    go_on.set()
    for thread in threads:
        thread.join()
    assert len(calls) == 2
    given = sorted(at.start for leased in answers.values() for at in ranges(leased))
    assert given == list(range(0, 80, 10))


def test_a_full_disk_changes_nothing_but_who_was_heard_of(ledger, tmp_path, monkeypatch):
    file = ledger._journal._file
    first = answer(ledger, Lease("c", 1, 10))
    before = snapshot(ledger._state)
    (pages,) = file.execute("PRAGMA page_count").fetchone()
    file.execute(f"PRAGMA max_page_count = {pages}").fetchall()
    consumed = tuple(StreamRange(0, at, at + 1) for at in range(0, 40_000, 2))
    now = ledger._clock.now()
    for seconds in range(0, 60, 5):
        monkeypatch.setattr(ledger._clock, "now", lambda at=now + seconds: at)
        with pytest.raises(UnavailableError, match="cannot write its journal .*full"):
            answer(ledger, Lease("c", 2, 10, consumed))
        ledger.tick()
    assert snapshot(ledger._state) == before
    file.execute("PRAGMA max_page_count = 1000000").fetchall()
    ledger.tick()
    assert ranges(answer(ledger, Lease("c", 2, 10, consumed))) == [StreamRange(0, 10, 20)]
    assert ranges(first) == [StreamRange(0, 0, 10)]
    after = snapshot(ledger._state)
    ledger.close()
    again = make_ledger(tmp_path)
    assert snapshot(again._state)[1:-1] == after[1:-1]
    again.close()


def test_a_disk_that_failed_is_written_anew_before_anything_is_answered(
    ledger, tmp_path, monkeypatch
):
    def fail(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(journals, "_sync", fail)
        with pytest.raises(UnavailableError, match="does not store the journal .*No space left"):
            answer(ledger, Lease("c", 1, 10))
    with pytest.raises(UnavailableError, match="does not store the journal"):
        answer(ledger, Lease("c", 1, 10))
    ledger.tick()
    assert ranges(answer(ledger, Lease("c", 1, 10))) == [StreamRange(0, 0, 10)]


def test_a_dispatcher_says_in_its_log_that_facts_were_lost(ledger, tmp_path, caplog):
    copy = tmp_path / "copy"
    copy.mkdir()
    answer(ledger, Lease("c", 1, 10))
    for end in ("", "-wal"):
        shutil.copy(tmp_path / f"journal{end}", copy / f"journal{end}")
    last = answer(ledger, Lease("c", 2, 10)).last
    older = make_ledger(copy, "e")
    for _ in range(2):
        with pytest.raises(NotFoundError, match=f"knows of fact {last.number}, and the journal"):
            answer(older, Lease("c", 3, 10, last=last))
    older.close()
    first, second = (record.getMessage() for record in caplog.records)
    assert "the dispatcher has lost facts: reader c knows of fact" in first
    assert second.startswith("elements that readers may get twice: job 'job'")


@pytest.mark.parametrize("recorded", sorted(FOLDER.glob("*.sqlite")), ids=lambda path: path.stem)
def test_journals_of_all_formats_are_read(recorded, tmp_path):
    """The file was written when its format was new. A field that was added since is ignored."""
    shutil.copy(recorded, tmp_path / "journal")
    expected = json.loads(recorded.with_suffix(".json").read_text())
    for _ in range(2):  # The first start writes a snapshot in today's format.
        ledger = make_ledger(tmp_path)
        assert with_keys_of(describe(ledger.status()), expected) == expected
        ledger.close()


def with_keys_of(found, expected):
    """`found` without the keys that `expected` does not have."""
    if isinstance(expected, dict):
        return {key: with_keys_of(found[key], value) for key, value in expected.items()}
    if isinstance(expected, list):
        pairs = zip(found, expected, strict=True)
        return [with_keys_of(each, wanted) for each, wanted in pairs]
    return found
