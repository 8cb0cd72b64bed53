import contextlib
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading

import pytest

from penstock.errors import (
    AlreadyExistsError,
    DataLossError,
    FailedPreconditionError,
    ResourceExhaustedError,
    UnavailableError,
)
from penstock.service.host import journal as journals
from penstock.service.host.journal import Journal


def open_journal(path) -> Journal[str]:
    return Journal(str(path), str.encode, bytes.decode)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "journal"


@pytest.fixture
def journal(path):
    journal = open_journal(path)
    yield journal
    journal.close()


def facts_in(path) -> list[str]:
    journal = open_journal(path)
    try:
        return list(journal.replay())
    finally:
        journal.close()


def test_facts_come_back_in_order(journal, path):
    journal.append(["a", "b"])
    journal.append([])
    journal.append(["c"])
    assert list(journal.replay()) == ["a", "b", "c"]
    assert len(journal) == 3
    journal.close()
    journal.close()
    again = open_journal(path)
    assert len(again) == 3
    again.append(["d"])
    again.close()
    assert facts_in(path) == ["a", "b", "c", "d"]


def test_compacting_replaces_all_facts(journal, path):
    journal.append(str(number) for number in range(1000))
    journal.compact(["sum"])
    assert len(journal) == 1
    journal.append(["more"])
    journal.close()
    assert facts_in(path) == ["sum", "more"]


def test_compacting_to_nothing(journal, path):
    journal.append(["a"])
    journal.compact([])
    journal.append(["b"])
    journal.close()
    assert facts_in(path) == ["b"]


def test_a_file_that_is_compacted_does_not_grow(journal, path):
    for _ in range(20):
        journal.append("x" * 1000 for _ in range(1000))
        journal.compact(["sum"])
    assert sum(file.stat().st_size for file in path.parent.iterdir()) < 4_000_000


WRITER = """
import sys
sys.path[:0] = {path!r}
from penstock.service.host.journal import Journal
journal = Journal({file!r}, str.encode, bytes.decode)
for number in range(10**9):
    journal.append([f"{{number}}.{{part}}" for part in range(3)])
    if number % 50 == 49:
        journal.compact(journal.replay())
    print(number, flush=True)
"""


def test_what_was_taken_survives_kill_and_nothing_is_half_there(path):
    for seed in range(3):
        random.seed(seed)
        program = WRITER.format(path=sys.path, file=str(path))
        with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as writer:
            for _ in range(random.randrange(20, 120)):
                last = int(writer.stdout.readline())
            os.kill(writer.pid, signal.SIGKILL)
            rest = writer.stdout.read().split()
        last = int(rest[-1]) if rest else last
        facts = facts_in(path)
        assert len(facts) % 3 == 0
        assert facts == [
            f"{number}.{part}" for number in range(len(facts) // 3) for part in range(3)
        ]
        assert len(facts) // 3 > last
        path.unlink()


# Who may open one


def test_one_process_at_a_time(journal, path, monkeypatch):
    monkeypatch.setattr("penstock.service.protocol.timing.JOURNAL_BUSY", 0.0)
    with pytest.raises(
        AlreadyExistsError, match="work_dir .* is in use by another dispatcher; stop"
    ):
        open_journal(path)
    program = f"import sys; sys.path[:0] = {sys.path!r}\n" + (
        "from penstock.service.host.journal import Journal\n"
        f"Journal({str(path)!r}, str.encode, bytes.decode)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert "AlreadyExistsError: work_dir" in done.stderr
    journal.append(["a"])
    assert list(journal.replay()) == ["a"]


def test_a_journal_is_free_when_it_was_closed(journal, path):
    journal.append(["a"])
    journal.close()
    assert facts_in(path) == ["a"]


# Files that are no journal


def test_a_file_of_something_else(path):
    path.write_bytes(b"a diary" * 1000)
    with pytest.raises(DataLossError, match="is damaged .file is not a database.; put a copy"):
        open_journal(path)


def test_a_database_of_something_else(path):
    with contextlib.closing(sqlite3.connect(path)) as file, file:
        file.execute("CREATE TABLE songs (name TEXT)")
    file.close()
    with pytest.raises(FailedPreconditionError, match="is not the journal of a dispatcher; choose"):
        open_journal(path)


def test_a_journal_of_a_later_penstock(journal, path):
    journal.close()
    with contextlib.closing(sqlite3.connect(path)) as file, file:
        file.execute("PRAGMA user_version = 2")
    file.close()
    with pytest.raises(
        FailedPreconditionError, match="has format 2, of a newer pen.* up to 1; upgrade"
    ):
        open_journal(path)


def test_a_folder_that_does_not_exist(tmp_path):
    with pytest.raises(FailedPreconditionError, match="cannot be opened .unable to open database"):
        open_journal(tmp_path / "none" / "journal")


# Damage


def change_file(path, statement: str) -> None:
    with contextlib.closing(sqlite3.connect(path)) as file, file:
        file.execute(statement)
    file.close()


@pytest.mark.parametrize(
    ("statement", "problem"),
    [
        ("DELETE FROM facts WHERE number = 2", "fact 2 is missing"),
        ("DELETE FROM facts WHERE number = 1", "fact 1 is missing"),
        ("UPDATE facts SET fact = x'62' WHERE number = 1", "fact 1 has a wrong checksum"),
        ("UPDATE facts SET fact = NULL WHERE number = 1", "fact 1 is missing"),
        ("ALTER TABLE facts RENAME TO songs", "no such table"),
    ],
)
def test_facts_that_were_changed(journal, path, statement, problem):
    journal.append(["a", "b", "c"])
    journal.close()
    change_file(path, statement)
    with pytest.raises(DataLossError, match=f"is damaged .*{problem}.*; put a copy"):
        facts_in(path)


def test_a_fact_that_cannot_be_decoded(journal):
    journal.append(["a"])
    journal._decode = lambda encoded: encoded.decode("utf-32")
    with pytest.raises(DataLossError, match="fact 1 cannot be read: .*utf-32"):
        list(journal.replay())


def copy_journal(path, folder):
    """Copies the file and its log: all that would be left after a power loss now."""
    for end in ("", "-wal"):
        if os.path.exists(f"{path}{end}"):
            shutil.copy(f"{path}{end}", folder / f"journal{end}")
    return folder / "journal"


@pytest.fixture
def copied_journal(journal, path, tmp_path):
    """A copy of a journal with facts in the file and in its log, and the list of all facts."""
    facts = [f"fact {number} " + "x" * 100 for number in range(200)]
    journal.append(facts[:40])
    journal.compact(facts[:50])
    for at in range(50, 125, 15):
        journal.append(facts[at : at + 15])
    journal._file.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
    journal._file.execute("PRAGMA wal_autocheckpoint = 0").fetchall()
    for at in range(125, 200, 15):
        journal.append(facts[at : at + 15])
    (tmp_path / "copy").mkdir()
    (tmp_path / "cut").mkdir()
    return copy_journal(path, tmp_path / "copy"), facts


def places(size: int, seed: int) -> list[int]:
    """Bytes at which to cut: around every page and frame, and some more."""
    edges = {at + by for step in (1024, 1048) for at in range(0, size, step) for by in (-1, 0, 32)}
    more = random.Random(seed).choices(range(size), k=30)
    return sorted(at for at in edges | set(more) if 0 <= at < size)


@pytest.mark.parametrize("end", ["", "-wal"])
def test_a_journal_cut_at_any_byte_gives_its_first_facts_or_is_refused(
    copied_journal, end, tmp_path
):
    copy, facts = copied_journal
    assert len(facts_in(copy_journal(copy, tmp_path / "cut"))) == len(facts)
    found = []
    for at in places(os.path.getsize(f"{copy}{end}"), 1):
        path = copy_journal(copy, tmp_path / "cut")
        os.truncate(f"{path}{end}", at)
        with contextlib.suppress(DataLossError):
            found.append(facts_in(path))
            assert found[-1] == facts[: len(found[-1])]
            assert len(found[-1]) >= 50, "a silent start with nothing"
    assert found


@pytest.mark.parametrize("end", ["", "-wal"])
def test_a_journal_with_a_flipped_bit_gives_its_first_facts_or_is_refused(
    copied_journal, end, tmp_path
):
    copy, facts = copied_journal
    for at in places(os.path.getsize(f"{copy}{end}"), 2):
        path = copy_journal(copy, tmp_path / "cut")
        with open(f"{path}{end}", "r+b") as file:
            file.seek(at)
            byte = file.read(1)[0]
            file.seek(at)
            file.write(bytes([byte ^ (1 << at % 8)]))
        with contextlib.suppress(DataLossError, FailedPreconditionError, ResourceExhaustedError):
            found = facts_in(path)
            assert found == facts[: len(found)]


def test_a_file_without_its_beginning(journal, path):
    journal.append(["a"])
    journal.close()
    os.truncate(path, 0)
    with pytest.raises(DataLossError, match="is damaged .the file is empty.; put a copy"):
        open_journal(path)
    assert os.path.getsize(path) == 0


def test_a_log_without_its_file(copied_journal):
    copy, _ = copied_journal
    os.unlink(copy)
    with pytest.raises(DataLossError, match="the file is gone, and its log is still there"):
        open_journal(copy)
    assert os.path.exists(f"{copy}-wal")


def test_a_journal_that_was_not_made_is_made_the_next_time(path, monkeypatch):
    def fail(self, is_new):
        self._file.execute("BEGIN EXCLUSIVE")
        raise sqlite3.OperationalError("disk I/O error")

    with monkeypatch.context() as patch:
        patch.setattr(Journal, "_prepare", fail)
        with pytest.raises(DataLossError, match="disk I/O error"):
            open_journal(path)
    assert facts_in(path) == []


# A full disk


def test_a_full_disk_takes_nothing_and_loses_nothing(journal, path):
    journal.append(["a"])
    (pages,) = journal._file.execute("PRAGMA page_count").fetchone()
    journal._file.execute(f"PRAGMA max_page_count = {pages}").fetchall()
    with pytest.raises(
        ResourceExhaustedError, match="cannot write its journal .*full.*; free some"
    ):
        journal.append(["b", "x" * 100_000, "c"])
    with pytest.raises(ResourceExhaustedError, match="cannot write its journal"):
        journal.compact(["x" * 100_000])
    assert len(journal) == 1
    assert list(journal.replay()) == ["a"]
    journal._file.execute(f"PRAGMA max_page_count = {pages + 100}").fetchall()
    journal.append(["b"])
    journal.close()
    assert facts_in(path) == ["a", "b"]


LIMITED = """
import resource, sys
sys.path[:0] = {path!r}
from penstock.errors import ResourceExhaustedError
from penstock.service.host.journal import Journal
journal = Journal({file!r}, str.encode, bytes.decode)
journal.append(["a"])
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))
try:
    journal.append(["x" * 1_000_000])
except ResourceExhaustedError as error:
    print("refused")
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
journal.append(["b"])
print(list(journal.replay()))
journal.close()
"""


def test_a_disk_that_writes_no_more_and_then_does(path):
    program = LIMITED.format(path=sys.path, file=str(path))
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("refused\n['a', 'b']\n", "")
    assert facts_in(path) == ["a", "b"]


def test_a_journal_that_may_not_be_written(journal, path, monkeypatch):
    journal.close()
    monkeypatch.setattr(
        Journal, "_connect", lambda self: sqlite3.connect(f"file:{self._path}?mode=ro", uri=True)
    )
    with pytest.raises(ResourceExhaustedError, match="cannot be used .disk I/O error.; free some"):
        open_journal(path)


# A slow disk


def test_threads_that_wait_for_the_disk_share_the_wait(journal, monkeypatch):
    began, go_on, calls = threading.Event(), threading.Event(), []

    def sync(descriptor: int) -> None:
        calls.append(len(journal))
        began.set()
        assert go_on.wait(60)

    monkeypatch.setattr(journals, "_sync", sync)
    journal.append(["a"])
    threads = [threading.Thread(target=journal.sync) for _ in range(8)]
    threads[0].start()
    assert began.wait(60)
    for number, thread in enumerate(threads[1:]):
        journal.append([str(number)])
        thread.start()
    go_on.set()
    for thread in threads:
        thread.join()
    assert calls == [1, 8]
    journal.sync()
    assert len(calls) == 2


def test_a_disk_that_failed_once_is_not_believed(journal, path, monkeypatch):
    def fail(descriptor: int) -> None:
        raise OSError(5, "Input/output error")

    journal.append(["a"])
    with monkeypatch.context() as patch:
        patch.setattr(journals, "_sync", fail)
        with pytest.raises(UnavailableError, match="does not store the journal .*Input/output"):
            journal.sync()
    with pytest.raises(UnavailableError, match="does not store the journal"):
        journal.sync()
    assert not journal.is_trusted
    journal.compact(["a"])
    assert journal.is_trusted
    journal.sync()
    journal.close()
    with pytest.raises(UnavailableError, match="the dispatcher was stopped"):
        journal._sync_log()
    assert facts_in(path) == ["a"]


def test_a_log_that_cannot_be_copied_is_no_compaction(journal, monkeypatch):
    class Failing:
        def __init__(self, file) -> None:
            self._file = file

        def __getattr__(self, name):
            return getattr(self._file, name)

        def execute(self, statement):
            if "checkpoint" in statement:
                raise sqlite3.OperationalError("database or disk is full")
            return self._file.execute(statement)

    monkeypatch.setattr(journal, "_file", Failing(journal._file))
    with pytest.raises(ResourceExhaustedError, match="cannot write its journal"):
        journal.compact(["a"])
