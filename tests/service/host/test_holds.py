"""Holds: one dispatcher uses a folder, and a standby takes it over."""

import contextlib
import os
import shutil
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.errors import AlreadyExistsError, UnavailableError
from penstock.service.host import holds
from penstock.service.host.holds import Hold, acquire, find_journal, remove_other_journals
from penstock.service.host.journal import Journal
from penstock.service.protocol import timing
from tests.integration.clusters import until


@pytest.fixture
def folder(tmp_path: Path) -> str:
    return str(tmp_path)


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Holders do not touch their file, and a standby notices soon."""
    monkeypatch.setattr(timing, "HOLD_RENEWAL", 600.0)
    monkeypatch.setattr(timing, "HOLD_LOOK", 0.005)
    monkeypatch.setattr(timing, "HOLD_SILENCE", 0.05)


@contextlib.contextmanager
def hold_folder(folder: str, wait: bool = False) -> Iterator[Hold]:
    hold = acquire(folder, wait)
    try:
        yield hold
    finally:
        hold.release()


def names(folder: str) -> list[str]:
    return sorted(os.listdir(folder))


def open_journal(path: str) -> Journal[bytes]:
    return Journal(path, encode=bytes, decode=bytes)


def test_one_dispatcher_holds_a_folder(folder: str) -> None:
    with hold_folder(folder) as first:
        first.check()
        with pytest.raises(
            AlreadyExistsError,
            match=f"is in use by another dispatcher .*, process {os.getpid()}.; stop .* --standby",
        ):
            acquire(folder)
        first.check()
    assert names(folder) == ["hold-1"]


def test_a_released_folder_is_free_at_once(folder: str) -> None:
    with hold_folder(folder) as first:
        assert (first.claim.number, first.claim.is_takeover) == (1, False)
    first.release()
    with hold_folder(folder) as second:
        assert (second.claim.number, second.claim.is_takeover) == (2, False)
    assert names(folder) == ["hold-2"]


def test_a_standby_waits_for_the_end_of_the_holder(folder: str) -> None:
    taken: list[Hold] = []
    with hold_folder(folder):
        standby = threading.Thread(target=lambda: taken.append(acquire(folder, wait=True)))
        standby.start()
    standby.join()
    assert not taken[0].claim.is_takeover
    taken[0].release()


@pytest.mark.usefixtures("silent")
def test_a_silent_holder_loses_the_folder(folder: str, caplog: pytest.LogCaptureFixture) -> None:
    lost = threading.Event()
    with hold_folder(folder) as first:
        first.on_loss = lost.set
        with hold_folder(folder, wait=True) as second:
            assert (second.claim.number, second.claim.is_takeover) == (2, True)
            assert "took work_dir" in caplog.text
            for use in (first.check, first.renew, first.check):
                with pytest.raises(UnavailableError, match="lost work_dir .*, process .* and ends"):
                    use()
            second.check()
            second.renew()
    assert names(folder) == ["hold-2"]


def test_a_holder_notices_its_loss_by_itself(
    folder: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(timing, "HOLD_RENEWAL", 0.01)
    lost = threading.Event()
    with hold_folder(folder) as first:
        first.on_loss = lost.set
        holds._create(folder, 2)
        holds._remove_lower(folder, 2)
        until(lost.is_set)
        assert first.loss in caplog.text


@pytest.mark.usefixtures("silent")
def test_a_holder_that_was_silent_continues_with_the_next_file(folder: str) -> None:
    with hold_folder(folder) as first:
        first._renewed -= timing.HOLD_TRUST + 1.0
        first.check()
        assert first.claim.number == 2
        assert names(folder) == ["hold-2"]
        first.check()
        assert first.claim.number == 2


@pytest.mark.usefixtures("silent")
def test_a_disk_that_is_too_slow(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the file is touched at last, a standby may have taken over already."""
    monkeypatch.setattr(timing, "HOLD_TRUST", -1.0)
    with (
        hold_folder(folder) as hold,
        pytest.raises(UnavailableError, match="took longer than .* to touch a file, so a standby"),
    ):
        hold.check()


@pytest.mark.usefixtures("silent")
def test_a_holder_that_was_silent_while_a_standby_begins_to_take_over(folder: str) -> None:
    """The standby has created its file, but has not deleted the holder's file yet."""
    with hold_folder(folder) as first:
        claim = holds._create(folder, 2)
        first._renewed -= timing.HOLD_TRUST + 1.0
        with pytest.raises(UnavailableError, match="lost work_dir"):
            first.check()
        os.close(claim.descriptor)


def test_a_disk_that_fails_is_no_loss(
    folder: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(path: str) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(timing, "HOLD_RENEWAL", 0.01)
    with hold_folder(folder) as hold:
        monkeypatch.setattr(os, "utime", fail)
        until(lambda: "hold-1 cannot be touched" in caplog.text)
        monkeypatch.undo()
        assert not hold.loss
        hold.check()


def test_of_many_dispatchers_one_gets_the_folder(folder: str) -> None:
    acquire(folder).release()
    found: list[Hold] = []
    start = threading.Barrier(8)

    def compete() -> None:
        start.wait()
        with contextlib.suppress(AlreadyExistsError):
            found.append(acquire(folder))

    threads = [threading.Thread(target=compete) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (hold,) = found
    assert names(folder) == [f"hold-{hold.claim.number}"]
    hold.release()


@pytest.mark.filterwarnings(r"ignore:os\.fork\(\) was called:RuntimeWarning")  # Of JAX.
def test_a_forked_child_does_not_release_the_folder(folder: str) -> None:
    with hold_folder(folder) as hold:
        child = os.fork()
        if not child:
            hold.release()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        with pytest.raises(AlreadyExistsError, match="is in use by another dispatcher"):
            acquire(folder)


# The journal


def test_the_journal_stays_where_it_is_unless_its_holder_may_write(folder: str) -> None:
    with hold_folder(folder) as hold:
        path = find_journal(folder, hold)
        assert path == os.path.join(folder, "journal.sqlite")
        open_journal(path).close()
    with hold_folder(folder) as hold:
        assert find_journal(folder, hold) == path


@pytest.mark.usefixtures("silent")
def test_a_silent_holder_cannot_write_the_journal_of_the_next(folder: str) -> None:
    with hold_folder(folder) as first:
        old = open_journal(find_journal(folder, first))
        old.append([b"one", b"two"])
        old.compact([b"one and two"])
        old.append([b"three"])
        with hold_folder(folder, wait=True) as second:
            path = find_journal(folder, second)
            new = open_journal(path)
            remove_other_journals(path)
            old.append([b"late"])
            new.append([b"four"])
            assert list(new.replay()) == [b"one and two", b"three", b"four"]
            new.close()
        old.close()
    with hold_folder(folder) as third:
        assert find_journal(folder, third) == path
        again = open_journal(path)
        assert list(again.replay()) == [b"one and two", b"three", b"four"]
        again.close()
    assert [name for name in names(folder) if "journal" in name] == ["journal-2.sqlite"]


@pytest.mark.usefixtures("silent")
def test_a_journal_that_changes_while_it_is_copied_is_copied_again(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    copies: list[str] = []
    copy_file = shutil.copyfile

    def copy_while_it_is_compacted(source: str, target: str) -> None:
        copy_file(source, target)
        copies.append(target)
        if len(copies) == 1:
            old.compact([b"all"])

    with hold_folder(folder) as first:
        old = open_journal(find_journal(folder, first))
        old.append([b"some"])
        monkeypatch.setattr(shutil, "copyfile", copy_while_it_is_compacted)
        with hold_folder(folder, wait=True) as second:
            new = open_journal(find_journal(folder, second))
            assert list(new.replay()) == [b"all"]
            assert len(copies) == 2
            new.close()
        old.close()


def test_sqlite_itself_still_refuses_two_writers(folder: str) -> None:
    """If a hold were given twice by mistake, the second dispatcher could not open the journal."""
    path = os.path.join(folder, "journal.sqlite")
    journal = open_journal(path)
    other = sqlite3.connect(path, timeout=0.0)
    with pytest.raises(sqlite3.OperationalError, match="locked"):
        other.execute("SELECT * FROM facts")
    other.close()
    journal.close()
