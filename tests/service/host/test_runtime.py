"""The machine, as readers and workers see it."""

import selectors
import threading

from penstock.service.host.runtime import MACHINE


def test_a_bell_wakes_a_thread_that_waits_for_sockets():
    bell, selector = MACHINE.bell(), MACHINE.selector()
    selector.register(bell, selectors.EVENT_READ, "bell")
    assert selector.select(0) == []
    bell.ring()
    bell.ring()
    assert [key.data for key, _ in selector.select(60)] == ["bell"]
    bell.quiet()
    assert selector.select(0) == []
    selector.close()
    bell.close()
    bell.ring()


def test_work_is_done_elsewhere():
    done = MACHINE.event()
    seen = []

    def work():
        seen.append(threading.current_thread())
        done.set()

    thread = MACHINE.start(work, "penstock-work")
    assert done.wait(60)
    thread.join()
    assert seen == [thread]
    assert (thread.name, thread.daemon) == ("penstock-work", True)


def test_every_name_is_unique():
    assert MACHINE.name() != MACHINE.name()


def test_time_passes():
    assert MACHINE.now() <= MACHINE.now()
    assert MACHINE.timer() <= MACHINE.timer()
