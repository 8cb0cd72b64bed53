"""Links: connections that are made in threads, waited for together, and always closed."""

import socket
import threading
from functools import partial

import pytest

from penstock.errors import FailedPreconditionError, UnavailableError
from penstock.service.host.data_client import Links
from penstock.service.host.runtime import Bell, Runtime
from penstock.service.logic.feeds import Ask, Feed
from penstock.service.protocol.data_messages import MOST_STATE, CloseTask, Fetch, OpenTask
from penstock.service.protocol.messages import Work, WorkerInfo
from tests.integration.clusters import until

WORK = Work("digest", "dispatcher/1", "split", 3, 5, 7, (0,))


def asking(request, start, stop):
    return Ask(request, "a", Feed(3), start, stop, mark=None, at=start)


def info(name):
    return WorkerInfo(name, f"{name}:1", "host")


class Line:
    """A fake connection with a real socket to wait for."""

    def __init__(self):
        self.here, self.there = socket.socketpair()
        self.sent, self.buffered, self.closed, self.aborted = [], False, False, False

    def send(self, *messages):
        self.sent.extend(messages)

    def pending(self):
        return self.buffered

    def fileno(self):
        return self.here.fileno()

    def abort(self):
        self.aborted = True

    def close(self):
        self.closed = True
        self.here.close()
        self.there.close()


class Exchange:
    """Connects to every worker that exists."""

    def __init__(self):
        self.lines = {}
        self.failing = {}
        self.gate = threading.Event()
        self.gate.set()

    def __call__(self, worker):
        self.gate.wait()
        if worker.worker in self.failing:
            raise self.failing[worker.worker]
        self.lines[worker.worker] = Line()
        return self.lines[worker.worker]


@pytest.fixture
def exchange():
    return Exchange()


@pytest.fixture
def links(exchange):
    bell = Bell()
    made = Links(exchange, bell)
    yield made
    made.close()
    bell.close()
    until(lambda: all(line.closed for line in exchange.lines.values()))


def connect_links(links, *names):
    links.want(map(info, names))
    links.dial()
    found = []
    until(lambda: found.extend(links.take_connected()) or len(found) == len(names))
    return found


def test_workers_are_connected_once(links, exchange):
    assert sorted(connect_links(links, "a", "b")) == ["a", "b"]
    links.dial()
    assert links.take_connected() == []
    assert len(links) == 2
    assert links.ever
    assert links["a"].connection is exchange.lines["a"]


def test_the_ones_with_something_to_read_are_found(links, exchange):
    connect_links(links, "a", "b")
    until(lambda: not links.ready(0))  # The bell has rung for the connections.
    exchange.lines["b"].there.send(b"x")
    assert [link.worker for link in links.ready(60)] == ["b"]
    exchange.lines["a"].buffered = True
    assert [link.worker for link in links.ready(60)] == ["a"]


def test_a_bell_wakes_every_waiting_thread(exchange):
    bell = Bell()
    links = Links(exchange, bell)
    bell.ring()
    assert links.ready(60) == []
    links.close()
    bell.close()
    bell.ring()


def test_workers_that_cannot_be_reached_are_tried_again(links, exchange):
    exchange.failing = {"a": UnavailableError("a is away"), "b": OSError("b is broken")}
    links.want([info("a"), info("b")])
    links.dial()
    until(lambda: links.take_connected() == [] and len(links.unreachable) == 2)
    assert links.unreachable["a"].message == "a is away"
    assert links.unreachable["b"].message == "b:1: b is broken"
    assert not links.ever
    links.dial()  # Not at once.
    assert not links._busy
    exchange.failing = {}
    links._again.clear()
    links.dial()
    until(lambda: links.take_connected() is not None and len(links) == 2)
    assert links.unreachable == {}


def test_workers_that_are_gone_are_reported(links, exchange):
    connect_links(links, "a", "b")
    links.unreachable["c"] = UnavailableError("c")
    assert links.want([info("b")]) == ["a"]
    assert links.unreachable == {}
    links.drop("a")
    links.drop("a")
    assert exchange.lines["a"].closed
    assert len(links) == 1


def test_a_connection_that_is_not_wanted_any_more_is_closed(links, exchange):
    exchange.gate.clear()
    links.want([info("a")])
    links.dial()
    links.want([])
    exchange.gate.set()
    until(
        lambda: (
            links.take_connected() == [] and "a" in exchange.lines and exchange.lines["a"].closed
        )
    )
    assert len(links) == 0


def test_a_connection_that_comes_after_the_end_is_closed(exchange):
    exchange.gate.clear()
    bell = Bell()
    links = Links(exchange, bell)
    links.want([info("a")])
    links.dial()
    links.close()
    bell.close()
    exchange.gate.set()
    until(lambda: "a" in exchange.lines and exchange.lines["a"].closed)


def test_tasks_are_opened_once_and_numbered(links, exchange):
    connect_links(links, "a")
    link, sent = links["a"], exchange.lines["a"].sent
    link.fetch(asking(1, 0, 5), WORK)
    link.fetch(asking(2, 5, 9), WORK)
    [opening, first, second] = sent
    assert opening == OpenTask(first.task, WORK)
    fetch = partial(Fetch, task=first.task, most_state=MOST_STATE)
    assert first == fetch(request=1, start=0, stop=5)
    assert second == fetch(request=2, start=5, stop=9)
    link.close_task(WORK)
    link.close_task(WORK)
    assert sent[3:] == []
    link.fetch(asking(3, 9, 10), WORK)
    assert sent[3] == CloseTask(first.task)
    assert isinstance(sent[4], OpenTask)
    assert sent[4].task != first.task


def test_connections_to_unwanted_workers_are_aborted(links, exchange):
    connect_links(links, "a", "b", "c")
    links["a"].in_use = links["b"].in_use = True
    links.abort_others([info("b")])
    # No thread waits for "c", and it may have sent where its streams continue.
    assert [exchange.lines[name].aborted for name in "abc"] == [True, False, False]


def test_a_worker_that_leaves_stays_connected_until_its_last_answer(links, exchange):
    """The dispatcher removed the worker from the list; its current element is not made again."""
    connect_links(links, "a", "b", "c")
    for number, name in enumerate("abc"):
        links[name].fetch(asking(number, number, number + 1), WORK)
        links[name].in_use = True
    links["a"].leaves = True
    links.abort_others([info("c")])
    assert [exchange.lines[name].aborted for name in "abc"] == [False, True, False]
    assert links.want([info("c")]) == ["b"]
    links.drop("b")
    assert links.unwanted == []
    links["a"].owed.discard(0)
    assert links.unwanted == ["a"]


def test_silent_workers_that_owe_an_answer_are_found(links, exchange):
    connect_links(links, "a", "b")
    until(lambda: not links.ready(0))
    links["a"].fetch(asking(1, 0, 5), WORK)
    links["b"].fetch(asking(2, 5, 9), WORK)
    exchange.lines["b"].there.send(b"x")
    until(lambda: links.ready(0) and links._looked >= links["a"].heard)
    assert [link.worker for link in links.silent(-1e-9)] == ["a"]
    assert links.silent(60.0) == []
    links["a"].owed.discard(1)
    assert links.silent(-1e-9) == []


def test_what_came_while_this_process_was_stopped_was_said(links, exchange):
    """The clock has advanced a lot, and the bytes that arrived meanwhile are not read yet."""
    connect_links(links, "a")
    until(lambda: not links.ready(0))
    links["a"].fetch(asking(1, 0, 5), WORK)
    links["a"].heard -= 1000.0
    exchange.lines["a"].there.send(b"x")
    until(lambda: links.ready(0))
    assert links.silent(10.0) == []


def test_why_workers_are_missing(links, exchange):
    connect_links(links, "a", "b")
    links.drop("a", "a (tcp): it has said nothing for 8 s")
    links.drop("b")
    assert links.missing() == [
        "a (tcp): it has said nothing for 8 s",
        "worker b:1 has not answered yet",
    ]
    links.want([info("b")])
    links.unreachable["b"] = UnavailableError("b is away")
    assert links.missing() == ["b is away"]


class Still(Runtime):
    """A machine whose clock does not move."""

    @staticmethod
    def now():
        return 100.0


def test_a_connection_that_breaks_repeatedly_is_tried_less_often(exchange):
    bell = Bell()
    links = Links(exchange, bell, Still())

    def pause():
        links._again.clear()
        connect_links(links, "a")
        links.drop("a")
        return round(links._again["a"] - 100.0, 6)

    assert [pause() for _ in range(6)] == [0.02, 0.08, 0.32, 1.28, 2.0, 2.0]
    links._again.clear()
    connect_links(links, "a")
    links.note_chunk(links["a"])
    links.drop("a")
    assert links._again["a"] == 100.02
    links.close()
    bell.close()


def test_a_waiting_thread_knows_when_to_connect_again(exchange):
    bell = Bell()
    links = Links(exchange, bell, Still())
    connect_links(links, "a")
    assert links.pause(100.0) == 2.0
    assert not links.awaits("a")
    links.drop("a")
    assert round(links.pause(100.0), 6) == 0.02
    assert links.awaits("a")
    assert not links.awaits("nobody")
    exchange.failing["a"] = UnavailableError("it is gone")
    exchange.gate.clear()
    links._again.clear()
    assert links.pause(100.0) == 0.0
    links.dial()  # A connection is being made, so only the bell can wake the reader.
    assert links.pause(100.0) == 2.0
    assert links.awaits("a")
    exchange.gate.set()
    until(lambda: links.take_connected() or links.unreachable)
    assert not links.awaits("a")
    assert links.pause(101.0) == 1.0
    links.close()
    bell.close()


def test_a_worker_of_another_version_is_logged_once(links, exchange, caplog, monkeypatch):
    monkeypatch.setattr("penstock.service.protocol.timing.RECONNECT", 0.0)
    exchange.failing["a"] = FailedPreconditionError("worker a:1 speaks protocol 9")
    links.want([info("a")])
    for _ in range(2):
        links.dial()
        until(lambda: links._arrived)
        links.take_connected()
    assert caplog.text.count("worker a:1 speaks protocol 9; this reader uses other workers") == 1
