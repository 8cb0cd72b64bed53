"""Endings run once, on their own thread if the collector starts them, never in a forked child."""

import gc
import subprocess
import sys
import threading
import weakref

import pytest

from penstock.engine import endings
from penstock.engine.endings import Ending

BOUND = 30.0


class Owner:
    """An object with an ending."""


@pytest.fixture
def ended_keys():
    return []


def test_it_ends_once(ended_keys):
    owner = Owner()
    ending = Ending(owner, ended_keys.append, "ended")
    ending()
    ending()
    del owner
    assert ended_keys == ["ended"]


def test_what_is_dropped_has_ended_when_that_is_done(ended_keys):
    owner = Owner()
    ending = Ending(owner, lambda: ended_keys.append(threading.current_thread()))
    del owner
    assert len(ended_keys) == 1
    assert ended_keys[0] is not threading.current_thread()
    ending()
    assert len(ended_keys) == 1


def test_what_is_forgotten_does_not_end(ended_keys):
    owner = Owner()
    ending = Ending(owner, ended_keys.append, "ended")
    ending.forget()
    ending()
    del owner
    assert ended_keys == []


def test_the_thread_that_drops_it_may_hold_a_lock_that_the_end_needs(monkeypatch):
    """The garbage collector may run while a lock is held, so it must not wait for one."""
    monkeypatch.setattr(endings, "_PATIENCE", None)
    lock, over = threading.Lock(), threading.Event()

    def end():
        with lock:
            over.set()

    owner = Owner()
    owner.itself = owner
    Ending(owner, end)
    with lock:
        del owner
        gc.collect()
        assert not over.is_set()
    assert over.wait(BOUND)


def test_the_collector_is_at_work_where_it_works_only(ended_keys):
    owner = Owner()
    owner.itself = owner
    weakref.finalize(owner, lambda: ended_keys.append(endings._collector.at_work))
    del owner
    gc.collect()
    ended_keys.append(endings._collector.at_work)
    assert ended_keys == [True, False]


def test_a_slow_ending_does_not_delay_the_next(ended_keys):
    go_on, over = threading.Event(), threading.Event()
    slow, quick = Owner(), Owner()

    def end():
        go_on.wait(BOUND)
        over.set()

    Ending(slow, end)
    Ending(quick, ended_keys.append, "ended")
    del slow, quick
    assert ended_keys == ["ended"]
    go_on.set()
    assert over.wait(BOUND)


def test_an_ending_may_drop_objects_with_endings(ended_keys):
    first, second = Owner(), Owner()
    held = [second]
    Ending(second, ended_keys.append, "second")
    Ending(first, held.clear)
    del first, second
    assert ended_keys == ["second"]


PROGRAM = """
import os, sys
sys.path[:0] = {path!r}
from penstock.engine.endings import Ending
class Owner: pass
def say(what): os.write(1, what.encode() + b"\\n")
dropped, called, kept, left = Owner(), Owner(), Owner(), Owner()
endings = [Ending(owner, say, name) for owner, name in
           [(dropped, "dropped"), (called, "called"), (kept, "kept")]]
Ending(left, say, "left", atexit=False)
child = os.fork()
if child == 0:
    endings[1]()
    own = Owner()
    Ending(own, say, "the child's own")
    del dropped, own
    say("the child ends")
    sys.exit()
os.waitpid(child, 0)
del dropped
endings[1]()
say("the parent ends")
"""


def test_a_child_leaves_alone_what_its_parent_opened_and_a_program_ends_what_is_left():
    program = PROGRAM.format(path=sys.path)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program], capture_output=True, text=True, timeout=60
    )
    assert done.stderr == ""
    assert done.stdout.splitlines() == [
        "the child's own",
        "the child ends",
        "dropped",
        "called",
        "the parent ends",
        "kept",
    ]
