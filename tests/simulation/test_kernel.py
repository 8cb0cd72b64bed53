"""Threads on the virtual clock: which thread runs when, and which never runs."""

import gc
import weakref

import pytest

from penstock.errors import UnavailableError
from tests.simulation.endpoints import Peer
from tests.simulation.kernel import Process, Violation, World
from tests.simulation.machines import Machine
from tests.simulation.network import Network, Weather


@pytest.fixture
def world():
    made = World(0)
    yield made
    made.close()


def until(world, seconds):
    world.run(seconds, lambda: False)


def test_time_passes_at_once(world):
    seen = []
    world.at(1e6, lambda: seen.append(world.now))
    until(world, 2e6)
    assert seen == [1e6]


def test_threads_take_turns(world):
    seen = []

    def work(name, seconds):
        for _ in range(2):
            world.wait(seconds)
            seen.append((name, world.now))

    process = Process(world, "p")
    process.spawn(lambda: work("a", 2.0))
    process.spawn(lambda: work("b", 3.0))
    until(world, 100)
    assert seen == [("a", 2.0), ("b", 3.0), ("a", 4.0), ("b", 6.0)]
    assert not world.threads


def test_what_a_thread_raises_ends_the_history(world):
    def work():
        world.wait(1.0)
        raise ValueError("not so")

    Process(world, "p").spawn(work)
    with pytest.raises(ValueError, match="not so"):
        until(world, 100)


def test_a_dead_process_does_nothing_more(world):
    seen = []

    def work():
        try:
            world.wait(2.0)
            seen.append("went on")
        finally:
            seen.append(world.over)

    process = Process(world, "p")
    process.spawn(work)
    world.at(1.0, process.kill)
    until(world, 100)
    assert seen == []
    world.close()
    assert seen == [True]


def test_a_stopped_process_continues_later(world):
    seen = []
    process = Process(world, "p")
    process.spawn(lambda: (world.wait(2.0), seen.append(world.now)))
    world.at(1.0, lambda: process.pause(9.0))
    world.at(1.5, lambda: process.pause(1.0))
    until(world, 100)
    assert seen == [10.0]


def test_conditions_events_and_threads_are_waited_for(world):
    process, seen = Process(world, "p"), []
    machine = Machine(process)
    condition, event, ready = machine.condition(), machine.event(), []

    def wait():
        with condition:
            assert not condition.wait(1.0)
            assert not condition.wait_for(lambda: ready, 1.0)
            assert condition.wait_for(lambda: ready)
        seen.append(world.now)
        assert event.wait(60.0)
        seen.append(world.now)

    def ring():
        world.wait(5.0)
        ready.append(True)
        with condition:
            condition.notify_all()
        world.wait(2.0)
        event.set()

    waiting = machine.start(wait, "waits")
    machine.start(ring, "rings")
    machine.start(lambda: (waiting.join(), seen.append("joined")), "joins")
    until(world, 100)
    assert seen == [5.0, 7.0, "joined"]


def test_no_thread_waits_while_it_holds_a_lock(world):
    process = Process(world, "p")
    lock = Machine(process).lock()

    def work():
        with lock:
            world.wait(1.0)

    process.spawn(work)
    with pytest.raises(Violation, match="holds a lock"):
        until(world, 100)


def test_connections_end_with_their_process(world):
    network, seen = Network(world, Weather()), []

    class Listener(Peer):
        def accept(self, end):
            self.spawn(lambda: self.serve(end))

        def serve(self, end):
            try:
                end.receive()
            except UnavailableError:
                seen.append(world.now)

    network.listeners["there"] = Listener(network, "worker")
    client = Peer(network, "client")
    client.spawn(lambda: network.connect(client, "there"))
    world.at(5.0, client.kill)
    until(world, 100)
    assert len(seen) == 1
    assert 5.0 < seen[0] < 5.1


def test_nothing_is_left_of_a_world():
    world = World(0)
    process = Process(world, "p")
    process.event = Machine(process).event()
    process.spawn(process.event.wait)
    until(world, 1.0)
    gone = weakref.ref(process)
    world.close()
    del world, process
    gc.collect()
    assert gone() is None
