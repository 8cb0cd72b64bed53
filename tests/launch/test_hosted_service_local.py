"""`local://N`: processes that start and end with a reader, and are replaced when they die."""

import ctypes
import gc
import logging
import os
import re
import signal
import subprocess
import sys
import threading
import urllib.request

import pytest

from penstock.data import Dataset
from penstock.data.experimental import service
from penstock.engine.processes import boot
from penstock.engine.tuning import cores
from penstock.errors import AbortedError, InternalError, InvalidArgumentError
from penstock.launch import hosted_service
from penstock.service.protocol import timing
from tests.integration.clusters import until


def whose(x):
    return os.getpid()


def alive(process):
    try:
        with open(f"/proc/{process}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def parent_of(process):
    try:
        with open(f"/proc/{process}/stat") as file:
            return int(file.read().rpartition(")")[2].split()[1])
    except (FileNotFoundError, ProcessLookupError):
        return 0


def children_of(process):
    running = (int(name) for name in os.listdir("/proc") if name.isdigit())
    return [child for child in running if alive(child) and parent_of(child) == process]


def is_program_of_workers(process):
    try:
        with open(f"/proc/{process}/cmdline") as file:
            return boot.WORKERS in file.read()
    except (FileNotFoundError, ProcessLookupError):
        return False


def find_workers(count):
    """The ids of the worker processes; None unless there are so many, of one program."""
    programs = [child for child in children_of(os.getpid()) if is_program_of_workers(child)]
    workers = children_of(programs[0]) if len(programs) == 1 else []
    return workers if len(workers) == count else None


def worker_processes(count):
    """The ids of the worker processes, when the programs of earlier tests have ended."""
    gc.collect()  # An iterator of an earlier test may hold its service until then.
    return until(lambda: find_workers(count))


def test_workers_are_forked_from_one_program_that_imports_what_they_need():
    made = Dataset.range(10).apply(service.distribute("distributed_epoch", "local://3"))
    with iter(made) as iterator:
        next(iterator)
        assert len(worker_processes(3)) == 3


def test_a_program_that_ends_is_replaced_with_its_workers(caplog):
    made = Dataset.range(10**6).apply(service.distribute("distributed_epoch", "local://2"))
    with iter(made) as iterator:
        next(iterator)
        processes = worker_processes(2)
        os.kill(parent_of(processes[0]), signal.SIGKILL)
        until(lambda: not any(map(alive, processes)))
        assert [int(next(iterator)) for _ in range(1000)] == list(range(1, 1001))
    assert "a worker process ended (exit code -9); starting another" in caplog.text


def test_processes_of_a_dataset_are_used_again_and_gone_soon_after():
    made = Dataset.range(40).map(whose).apply(service.distribute("distributed_epoch", "local://2"))
    with iter(made.repeat(3)) as iterator:
        seen = {int(next(iterator)) for _ in range(120)}
        assert next(iterator, None) is None
    assert 1 <= len(seen) <= 2
    assert os.getpid() not in seen
    until(lambda: not any(map(alive, seen)))
    # Another iteration has other workers.
    again = {int(x) for x in made}
    assert not seen & again
    until(lambda: not any(map(alive, again)))


def test_functions_of_any_kind_travel():
    factor = 3

    class Times:
        def __call__(self, x):
            return x * factor

    made = Dataset.range(5).map(Times()).map(lambda x: x + factor)
    found = made.apply(service.distribute("distributed_epoch", "local://1"))
    assert [int(x) for x in found] == [3, 6, 9, 12, 15]


def dying(folder):
    """A function that kills its process at element 20, the first time; never this process."""
    here = os.getpid()

    def call(x):
        mark = os.path.join(folder, "died")
        if x == 20 and os.getpid() != here and not os.path.exists(mark):
            with open(mark, "w"):
                pass
            os.kill(os.getpid(), signal.SIGKILL)
        return x

    return call


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("stream", [False, True])
def test_a_killed_process_is_replaced_and_nothing_is_lost(tmp_path, workers, stream, caplog):
    dataset = Dataset.range(60).filter(lambda x: True) if stream else Dataset.range(60)
    made = dataset.map(dying(str(tmp_path)))
    made = made.apply(service.distribute("distributed_epoch", f"local://{workers}"))
    assert [int(x) for x in made] == list(range(60))
    assert (tmp_path / "died").exists()
    if workers == 1:  # Two workers may finish before the loss is noticed.
        assert "was killed by signal 9 (killed) and was replaced" in caplog.text


def test_an_element_that_ends_every_process_is_an_error():
    here = os.getpid()

    def crash(x):
        if x == 20 and os.getpid() != here:
            ctypes.string_at(0)
        return x

    made = Dataset.range(60).map(crash)
    made = made.apply(service.distribute("distributed_epoch", "local://2"))
    with pytest.raises(
        AbortedError, match=r"crash at .* element 20 .*: .*11 \(segmentation fault\)"
    ):
        list(made)
    assert [int(x) for x in made.ignore_errors()] == [x for x in range(60) if x != 20]


FROZEN = """
import os, signal, sys
sys.path[:0] = {path!r}
from penstock.data import Dataset
from penstock.data.experimental import service
from tests.launch.test_hosted_service_local import worker_processes
iterator = iter(Dataset.range(10**6).apply(service.distribute("distributed_epoch", "local://2")))
next(iterator)
processes = worker_processes(2)
for process in processes:
    os.kill(process, signal.SIGSTOP)
print(*processes)
{end}
"""


@pytest.mark.parametrize("end", ["iterator.close()", "", "raise KeyboardInterrupt"])
def test_frozen_processes_do_not_outlive_a_reader(end):
    program = FROZEN.format(path=sys.path, end=end)
    done = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    processes = [int(number) for number in done.stdout.split()]
    assert len(processes) == 2
    until(lambda: not any(map(alive, processes)))


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ("/bin/false", r"worker processes end soon after they start \(exit code 1\)"),
        ("/no/such/program", "'/no/such/program' cannot be started"),
    ],
)
def test_workers_that_cannot_start_are_an_error(monkeypatch, program, reason):
    monkeypatch.setattr(sys, "executable", program)
    iterator = iter(Dataset.range(3).apply(service.distribute("distributed_epoch", "local://1")))
    with pytest.raises(InternalError, match=reason):
        next(iterator)
    iterator.close()


@pytest.mark.parametrize("count", ["0", "-1", "two", "1.5", "3..1", "..4", "1..x"])
def test_a_number_of_processes_is_needed(count):
    with pytest.raises(
        InvalidArgumentError, match=f"local://{re.escape(count)} must name a number"
    ):
        Dataset.range(3).apply(service.distribute("distributed_epoch", f"local://{count}"))


@pytest.mark.parametrize("query", ["dashboard", "dashboard_port=x", "port=1", "dashboard_port=-1"])
def test_only_a_port_of_the_dashboard_may_follow(query):
    with pytest.raises(InvalidArgumentError, match="may only add a port for its dashboard"):
        Dataset.range(3).apply(service.distribute("distributed_epoch", f"local://1?{query}"))


def test_a_link_to_the_dashboard_is_printed(capsys):
    url = "local://1?dashboard_port=0"
    iterator = iter(Dataset.range(3).apply(service.distribute("distributed_epoch", url)))
    assert next(iterator) == 0
    link = capsys.readouterr().err.removeprefix("penstock dashboard at ").strip()
    opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
    assert b"<title>penstock</title>" in opener.open(link).read()
    iterator.close()


def test_without_a_number_there_is_one_process_for_each_core(monkeypatch):
    monkeypatch.setattr(hosted_service.os, "cpu_count", lambda: 2)
    serving = hosted_service.start_local("")
    try:
        processes = worker_processes(2)
    finally:
        serving.close()
    assert not any(map(alive, processes))
    serving.close()


SCRIPT = """
import os
import penstock as tf
service = tf.data.experimental.service
made = tf.data.Dataset.range(10).map(lambda x: os.getpid())
iterator = iter(made.apply(service.distribute("distributed_epoch", "local://1")))
print(int(next(iterator)), flush=True)
{end}
"""


@pytest.mark.parametrize("end", ["", "input()", "raise SystemExit(1)"])
def test_no_process_outlives_a_reader(end, tmp_path):
    """A program may end by itself, by an error, or by a signal."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(end=end))
    with subprocess.Popen(
        [sys.executable, str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as program:
        worker = int(program.stdout.readline())
        if end == "input()":
            assert alive(worker)
            program.kill()
        program.wait()
    until(lambda: not alive(worker))


def test_two_readers_of_one_dataset_share_its_processes():
    made = Dataset.range(20).map(whose).apply(service.distribute("distributed_epoch", "local://1"))
    one, two = iter(made), iter(made)
    assert next(one) == next(two)
    one.close()
    assert len({int(x) for x in two}) == 1


def slow(x):
    threading.Event().wait(0.002)
    return x


THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


@pytest.mark.parametrize(
    ("workers", "given", "expected"),
    [
        ("2", {}, [max(1, cores() // 2)] * 3),
        ("1..5", {}, [max(1, cores() // 5)] * 3),
        ("3", {"OMP_NUM_THREADS": "7"}, [7, 7, 7]),
        ("4", {"OMP_NUM_THREADS": "7", "OPENBLAS_NUM_THREADS": "3"}, [7, 3, 7]),
    ],
)
def test_workers_share_the_cores_among_native_libraries(workers, given, expected, monkeypatch):
    for name in THREADS:
        monkeypatch.delenv(name, raising=False)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    made = Dataset.range(1).map(lambda _: [int(os.environ.get(name, 0)) for name in THREADS])
    [found] = made.apply(service.distribute("distributed_epoch", f"local://{workers}"))
    assert found.tolist() == expected


def test_workers_follow_the_load_and_nothing_is_lost(monkeypatch, caplog):
    """A reader that waits gets more workers, and one that does not wait keeps one."""
    monkeypatch.setattr(timing, "SCALING", 0.1)
    monkeypatch.setattr(timing, "SHRINK_AFTER", 0.5)
    caplog.set_level(logging.INFO, "penstock.service")
    made = Dataset.range(10**6).map(slow)
    iterator = iter(made.apply(service.distribute("distributed_epoch", "local://1..3")))
    elements = []
    gc.collect()  # An iterator of an earlier test may hold its service until then.
    # On a busy machine, looking for the workers takes a while, in which the reader does not wait.
    while find_workers(3) is None:
        elements += [int(next(iterator)) for _ in range(500)]
    # From now on the reader uses so little that one worker is enough.
    while find_workers(1) is None:
        elements.append(int(next(iterator)))
        threading.Event().wait(0.05)
    elements += [int(next(iterator)) for _ in range(100)]
    assert elements == list(range(len(elements)))
    assert "starting another" not in caplog.text
    iterator.close()
