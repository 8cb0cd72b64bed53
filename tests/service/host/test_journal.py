import contextlib
import os
import random
import signal
import sqlite3
import subprocess
import sys

import pytest

from penstock.errors import (
    AlreadyExistsError,
    DataLossError,
    FailedPreconditionError,
    ResourceExhaustedError,
)
from penstock.service.host.journal import Journal


def opened(path) -> Journal[str]:
    return Journal(str(path), str.encode, bytes.decode)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "journal"


@pytest.fixture
def journal(path):
    journal = opened(path)
    yield journal
    journal.close()


def facts_in(path) -> list[str]:
    journal = opened(path)
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
    again = opened(path)
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
    monkeypatch.setattr("penstock.service.host.journal._BUSY_SECONDS", 0.0)
    with pytest.raises(
        AlreadyExistsError, match="work_dir .* is in use by another dispatcher; stop"
    ):
        opened(path)
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
        opened(path)


def test_a_database_of_something_else(path):
    with sqlite3.connect(path) as file:
        file.execute("CREATE TABLE songs (name TEXT)")
    file.close()
    with pytest.raises(FailedPreconditionError, match="is not the journal of a dispatcher; choose"):
        opened(path)


def test_a_journal_of_a_later_penstock(journal, path):
    journal.close()
    with sqlite3.connect(path) as file:
        file.execute("PRAGMA user_version = 2")
    file.close()
    with pytest.raises(FailedPreconditionError, match="has format 2, and this .* knows format 1"):
        opened(path)


def test_a_folder_that_does_not_exist(tmp_path):
    with pytest.raises(FailedPreconditionError, match="cannot be opened .unable to open database"):
        opened(tmp_path / "none" / "journal")


# Damage


def changed(path, statement: str) -> None:
    with sqlite3.connect(path) as file:
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
    changed(path, statement)
    with pytest.raises(DataLossError, match=f"is damaged .*{problem}.*; put a copy"):
        facts_in(path)


def test_a_fact_that_cannot_be_decoded(journal):
    journal.append(["a"])
    journal._decode = lambda encoded: encoded.decode("utf-32")
    with pytest.raises(DataLossError, match="fact 1 cannot be read: .*utf-32"):
        list(journal.replay())


def test_a_file_that_was_cut(journal, path):
    journal.append("x" * 1000 for _ in range(100))
    journal.close()
    os.truncate(path, os.path.getsize(path) // 2)
    with pytest.raises(DataLossError, match="is damaged .*malformed"):
        facts_in(path)


@pytest.mark.parametrize("seed", range(30))
def test_flipped_bits_are_seen_or_do_no_harm(journal, path, seed):
    facts = [f"fact {number} " + "x" * 200 for number in range(50)]
    journal.append(facts)
    journal.close()
    content = bytearray(path.read_bytes())
    place = random.Random(seed).randrange(len(content))
    content[place] ^= 1 << (seed % 8)
    path.write_bytes(content)
    with contextlib.suppress(DataLossError, FailedPreconditionError, ResourceExhaustedError):
        assert facts_in(path) == facts


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
        Journal, "_opened", lambda self: sqlite3.connect(f"file:{self._path}?mode=ro", uri=True)
    )
    with pytest.raises(ResourceExhaustedError, match="cannot be used .disk I/O error.; free some"):
        opened(path)
