"""The agent: what it reports to the dispatcher, how often, and what it does with the answers."""

import threading
import time

import msgspec
import pytest

from penstock.errors import (
    AbortedError,
    InternalError,
    InvalidArgumentError,
    NotFoundError,
    UnavailableError,
)
from penstock.service.host.agent import Agent, LeasesLost
from penstock.service.protocol import timing
from penstock.service.protocol.messages import (
    ClientHeartbeat,
    ClientHeartbeatReply,
    Grant,
    Intervals,
    JobOptions,
    LastFact,
    Lease,
    LeaseReply,
    Leave,
    Ok,
    OpenIteration,
    OpenIterationReply,
    StreamInfo,
    StreamRange,
    Work,
    WorkerInfo,
)
from tests.integration.clusters import until

WORK = Work("digest", "dispatcher/1", "random", 0, 1, 7, (0,))
OPENING = OpenIteration("me", "job", 0, "1000", JobOptions(1), 7, (0,))
WORKER = WorkerInfo("w", "localhost:1", "host")


class Dispatcher:
    """Replaces a session: records all requests, and answers as the test says."""

    def __init__(self) -> None:
        self.said = []
        self.name = "dispatcher"
        self.answers = {ClientHeartbeat: lambda _: ClientHeartbeatReply(1), Leave: lambda _: Ok()}
        self.lock = threading.Lock()

    def call(self, request, timeout=None):
        with self.lock:
            self.said.append(request)
        answer = self.answers[type(request)](request)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def dispatcher(self):
        return self.name

    def of(self, kind):
        with self.lock:
            return [request for request in self.said if isinstance(request, kind)]


@pytest.fixture
def dispatcher(monkeypatch):
    monkeypatch.setattr(timing, "CLIENT_HEARTBEAT", 0.01)
    return Dispatcher()


@pytest.fixture
def make(dispatcher):
    made = []

    def agent(leased=True, reopen=lambda begins: None, wake=lambda event: None, lap=None):
        opened = OpenIterationReply(WORK, leased, 1, (), ())
        made.append(Agent(dispatcher, OPENING, opened, wake, reopen, lap=lap))
        return made[-1]

    yield agent
    for each in made:
        dispatcher.answers[Leave] = lambda _: Ok()
        each.stop()


def test_it_says_regularly_that_the_reader_lives(dispatcher, make):
    make().report([StreamRange(0, 0, 4)], {0: 4}, 4, 0.5)
    until(lambda: any(beat.consumed for beat in dispatcher.of(ClientHeartbeat)[:-3]))
    beats = dispatcher.of(ClientHeartbeat)
    told = [beat for beat in beats if beat.consumed]
    assert [(beat.consumed, beat.ended) for beat in told] == [((StreamRange(0, 0, 4),), ((0, 4),))]
    assert sum(beat.elements for beat in beats) == 4
    assert sum(beat.waited for beat in beats) == 0.5


def test_a_reader_of_a_large_service_sends_fewer_heartbeats(dispatcher, make):
    seldom = ClientHeartbeatReply(1, intervals=Intervals(heartbeat=1e9))
    dispatcher.answers[ClientHeartbeat] = lambda _: seldom
    dispatcher.answers[Lease] = lambda _: LeaseReply(
        (Grant(StreamRange(0, 0, 4)),), intervals=Intervals()
    )
    agent = make()
    until(lambda: agent._interval > 1000)
    assert len(dispatcher.of(ClientHeartbeat)) == 1
    agent.report([], {}, 0, 0.0, want=4)
    until(lambda: len(dispatcher.of(ClientHeartbeat)) == 2)


def test_news_become_events_and_wake_the_reader(dispatcher, make):
    woken = threading.Event()
    news = ClientHeartbeatReply(2, workers=(WORKER,))
    dispatcher.answers[ClientHeartbeat] = lambda beat: (
        news if beat.version == 1 else ClientHeartbeatReply(2)
    )
    agent = make(wake=lambda event: woken.set())
    assert woken.wait(60)
    assert agent.events.popleft() == news
    # From now on the client knows that version, and nothing is new.
    until(lambda: dispatcher.of(ClientHeartbeat)[-1].version == 2)
    assert not agent.events


@pytest.mark.parametrize("kind", [ClientHeartbeat, Lease])
def test_unexpected_errors_reach_the_reader_every_time(dispatcher, make, kind):
    dispatcher.answers[kind] = lambda _: ZeroDivisionError("odd")
    agent = make()
    for _ in range(2):
        agent.report([], {}, 0, 0.0, want=8 if kind is Lease else 0)
        until(lambda: agent.events)
        event = agent.events.popleft()
        assert isinstance(event, InternalError)
        assert str(event) == "distribute: ZeroDivisionError: odd"


def test_leases_are_asked_for_at_once_with_what_was_consumed(dispatcher, make, monkeypatch):
    monkeypatch.setattr(timing, "CLIENT_HEARTBEAT", 1000.0)
    granted = LeaseReply((Grant(StreamRange(0, 0, 8)),))
    dispatcher.answers[Lease] = lambda _: granted
    agent = make()
    agent.report([StreamRange(0, 0, 2)], {}, 2, 0.0, want=8)
    until(lambda: agent.events)
    assert agent.events.popleft() == granted
    agent.report([], {}, 0, 0.0, want=8)
    until(lambda: len(dispatcher.of(Lease)) == 2)
    assert dispatcher.of(Lease) == [
        Lease("me", 1, 8, (StreamRange(0, 0, 2),)),
        Lease("me", 2, 8),
    ]


def test_workers_that_are_lost_are_reported_at_once(dispatcher, make, monkeypatch):
    monkeypatch.setattr(timing, "CLIENT_HEARTBEAT", 1000.0)
    make().report_lost("w")
    until(lambda: dispatcher.of(ClientHeartbeat))
    assert dispatcher.of(ClientHeartbeat)[0].lost == ("w",)


def test_a_dispatcher_that_is_away_is_waited_for(dispatcher, make):
    answers = iter([UnavailableError("away")] * 3)
    dispatcher.answers[Lease] = lambda _: next(answers, LeaseReply(finished=True))
    agent = make()
    agent.report([], {}, 0, 0.0, want=1)
    until(lambda: agent.events)
    assert agent.events.popleft() == LeaseReply(finished=True)
    assert len({lease.number for lease in dispatcher.of(Lease)}) == 1


def test_what_the_dispatcher_refuses_reaches_the_reader(dispatcher, make):
    dispatcher.answers[Lease] = lambda _: InvalidArgumentError("no")
    agent = make()
    agent.report([], {}, 0, 0.0, want=1)
    until(lambda: agent.events)
    assert agent.events.popleft().message == "no"


def test_a_reader_that_was_forgotten_opens_again(dispatcher, make):
    opened = OpenIterationReply(WORK, False, 5, (WORKER,), ())
    dispatcher.answers[ClientHeartbeat] = lambda beat: (
        NotFoundError("who?") if beat.version == 1 else ClientHeartbeatReply(5)
    )
    agent = make(leased=False, reopen=lambda begins: opened)
    until(lambda: agent.events)
    assert agent.events.popleft() == opened


def test_an_iteration_that_cannot_be_opened_again_is_an_error(dispatcher, make):
    def reopen(begins):
        raise NotFoundError("the dataset is forgotten")

    dispatcher.answers[ClientHeartbeat] = lambda _: NotFoundError("who?")
    agent = make(leased=False, reopen=reopen)
    until(lambda: agent.events)
    assert agent.events.popleft().message == "the dataset is forgotten"


def test_a_consumer_promises_a_limit_and_keeps_it_until_its_reader_knows_more(dispatcher, make):
    dispatcher.answers[ClientHeartbeat] = lambda _: ClientHeartbeatReply(2, joining=True)
    agent = make(leased=False, lap=4)
    until(lambda: any(beat.version == 2 for beat in dispatcher.of(ClientHeartbeat)))
    assert {beat.limit for beat in dispatcher.of(ClientHeartbeat)[1:]} == {5}
    agent.events.clear()
    agent.release()
    assert not agent.may_enter(5)
    dispatcher.answers[ClientHeartbeat] = lambda _: ClientHeartbeatReply(3)
    until(lambda: agent.events)
    agent.release()
    assert not agent.may_enter(5), "the reader has not seen the answer yet"
    agent.events.clear()
    agent.release()
    assert agent.may_enter(5)
    assert agent.may_end()


def test_a_consumer_that_was_forgotten_reports_the_laps_of_its_streams(dispatcher, make):
    told = []

    def reopen(begins):
        told.append(begins)
        return OpenIterationReply(WORK, False, 9, (WORKER,), streams)

    streams = (StreamInfo(0, "w"), StreamInfo(1, "w", 7))
    answers = {1: ClientHeartbeatReply(2, (WORKER,), streams), 9: ClientHeartbeatReply(9)}
    dispatcher.answers[ClientHeartbeat] = lambda beat: answers.get(
        beat.version, NotFoundError("who?")
    )
    make(leased=False, reopen=reopen, lap=0)
    until(lambda: told)
    assert told[0] == (0, 7)


def test_leases_that_were_given_to_other_readers_are_gone(dispatcher, make):
    dispatcher.answers[ClientHeartbeat] = lambda _: NotFoundError("who?")
    agent = make()
    until(lambda: agent.events)
    assert isinstance(agent.events.popleft(), LeasesLost)


def test_leases_of_another_dispatcher_are_an_error(dispatcher, make):
    dispatcher.name = "another"
    dispatcher.answers[ClientHeartbeat] = lambda _: NotFoundError("who?")
    agent = make()
    until(lambda: agent.events)
    assert agent.events.popleft().message == "who?"


def test_a_saved_state_waits_until_the_dispatcher_knows(dispatcher, make, monkeypatch):
    monkeypatch.setattr(timing, "CLIENT_HEARTBEAT", 1000.0)
    agent = make()
    agent.report([StreamRange(0, 3, 5)], {}, 2, 0.0)
    agent.commit()
    assert dispatcher.of(ClientHeartbeat)[-1].consumed == (StreamRange(0, 3, 5),)


def test_the_last_report_has_what_was_not_reported_yet(dispatcher, make, monkeypatch):
    monkeypatch.setattr(timing, "CLIENT_HEARTBEAT", 1000.0)
    agent = make()
    agent.report([StreamRange(0, 0, 3)], {0: 3}, 3, 0.0)
    agent.stop()
    agent.stop()
    assert [(left.consumed, left.ended) for left in dispatcher.of(Leave)] == [
        ((StreamRange(0, 0, 3),), ((0, 3),))
    ]
    until(lambda: not agent._thread.is_alive())


def test_a_dispatcher_that_is_gone_does_not_hold_up_the_end(dispatcher, make):
    dispatcher.answers[Leave] = lambda _: UnavailableError("gone")
    make().stop()
    assert len(dispatcher.of(Leave)) == 1


def test_news_can_be_asked_for(dispatcher, make, monkeypatch):
    monkeypatch.setattr(timing, "CLIENT_HEARTBEAT", 1000.0)
    agent = make()
    news = ClientHeartbeatReply(3, workers=(WORKER,))
    dispatcher.answers[ClientHeartbeat] = lambda _: news
    agent.sync()
    assert agent.events.popleft() == news
    dispatcher.answers[ClientHeartbeat] = lambda _: UnavailableError("away")
    agent.sync()
    assert not agent.events


def test_a_consumer_that_came_and_went_was_there(dispatcher, make):
    dispatcher.answers[ClientHeartbeat] = lambda beat: ClientHeartbeatReply(
        1, ready=True, missing=(1,)
    )
    opened = OpenIterationReply(WORK, False, 1, (), (), ready=False, missing=(1,))
    agent = Agent(dispatcher, OPENING, opened, lambda event: None, lambda: None)
    until(lambda: agent.events)
    assert agent.events.popleft().ready
    dispatcher.answers[Leave] = lambda _: Ok()
    agent.stop()


def test_reports_without_an_answer_are_sent_again_at_the_end(dispatcher, make):
    begun, answered = threading.Event(), threading.Event()

    def late(lease):
        begun.set()
        answered.wait(60)
        return LeaseReply()

    dispatcher.answers[Lease] = late
    dispatcher.answers[Leave] = lambda _: Ok()
    agent = make()
    agent.report([StreamRange(0, 0, 4)], {}, 4, 0.0, want=5)
    assert begun.wait(60)
    agent.stop()
    answered.set()
    assert dispatcher.of(Leave)[0].consumed == (StreamRange(0, 0, 4),)


def test_reports_that_may_not_have_arrived_are_sent_again(dispatcher, make, monkeypatch):
    monkeypatch.setattr(timing, "CLIENT_HEARTBEAT", 1000.0)
    dispatcher.answers[Lease] = dispatcher.answers[ClientHeartbeat] = lambda _: NotFoundError(
        "who?"
    )
    agent = make()
    agent.report([StreamRange(0, 0, 4)], {0: 9}, 4, 0.0, want=5)
    until(lambda: agent.events)
    agent.report([StreamRange(0, 4, 6)], {}, 2, 0.0)
    agent.commit()
    agent.stop()
    both = (StreamRange(0, 0, 4), StreamRange(0, 4, 6))
    assert dispatcher.of(ClientHeartbeat)[-1].consumed == both
    assert [(left.consumed, left.ended) for left in dispatcher.of(Leave)] == [(both, ((0, 9),))]


def test_reports_that_were_refused_are_not_sent_again(dispatcher, make, monkeypatch):
    monkeypatch.setattr(timing, "CLIENT_HEARTBEAT", 1000.0)
    dispatcher.answers[Lease] = lambda _: InvalidArgumentError("no")
    agent = make()
    agent.report([StreamRange(0, 0, 4)], {0: 9}, 4, 0.0, want=5)
    until(lambda: agent.events)
    agent.stop()
    assert [(left.consumed, left.ended) for left in dispatcher.of(Leave)] == [((), ())]


def test_the_last_message_counts_what_no_heartbeat_has_counted(dispatcher, make, monkeypatch):
    monkeypatch.setattr(timing, "CLIENT_HEARTBEAT", 1000.0)
    dispatcher.answers[Leave] = lambda _: Ok()
    agent = make()
    agent.report([], {}, 4, 0.5)
    agent.stop()
    agent.leave()
    first, second = dispatcher.of(Leave)
    assert (first.elements, first.waited) == (4, 0.5)
    assert first.seconds > 0
    assert (second.elements, second.waited) == (0, 0.0)


def test_leases_without_an_answer_are_asked_for_by_the_same_number(dispatcher, make, monkeypatch):
    monkeypatch.setattr(timing, "CLIENT_HEARTBEAT", 1000.0)
    monkeypatch.setattr(timing, "DISPATCHER_ABSENCE", -1.0)
    answers = iter([UnavailableError("away")])
    dispatcher.answers[Lease] = lambda _: next(answers, LeaseReply())
    agent = make()
    for count in range(1, 4):
        agent.report([], {}, 0, 0.0, want=5)
        until(lambda count=count: len(agent.events) == count)
    assert [lease.number for lease in dispatcher.of(Lease)] == [1, 1, 2]


def test_a_reader_that_learns_of_a_wait_acknowledges_it_at_once(dispatcher, make, monkeypatch):
    monkeypatch.setattr(timing, "CLIENT_HEARTBEAT", 1000.0)
    dispatcher.answers[ClientHeartbeat] = lambda beat: ClientHeartbeatReply(2)
    agent = make()
    agent.report_lost("w")
    until(lambda: len(dispatcher.of(ClientHeartbeat)) == 2)
    assert [beat.version for beat in dispatcher.of(ClientHeartbeat)] == [1, 2]
    assert not agent.events


def test_a_reader_that_begins_to_wait_sends_a_heartbeat(dispatcher, make, monkeypatch):
    monkeypatch.setattr(timing, "CLIENT_HEARTBEAT", 1000.0)
    answers = iter(
        [LeaseReply(retry=0.2), LeaseReply(retry=0.2), LeaseReply((Grant(StreamRange(0, 0, 1)),))]
    )
    dispatcher.answers[Lease] = lambda _: next(answers, LeaseReply(finished=True))
    agent = make()
    for count in range(1, 5):
        agent.report([], {}, 0, 0.0, want=5)
        until(lambda count=count: len(agent.events) == count)
    agent.stop()
    until(lambda: not agent._thread.is_alive())
    assert [type(said) for said in dispatcher.said[:3]] == [Lease, ClientHeartbeat, Lease]
    assert len(dispatcher.of(ClientHeartbeat)) == 1


def test_leases_are_relied_on_only_while_the_dispatcher_answers(make, dispatcher):
    agent = make()
    until(lambda: dispatcher.of(ClientHeartbeat))
    now = time.monotonic()
    assert agent.holds_leases(now)
    assert not agent.holds_leases(now + 8.0)
    assert make(leased=False).holds_leases(now + 8.0)


# Which facts an answer depends on


def test_a_reader_reports_the_last_fact_that_it_knows_of(dispatcher, make):
    facts = iter([5, 9, 7])
    dispatcher.answers[ClientHeartbeat] = lambda _: ClientHeartbeatReply(
        1, last=LastFact("d", next(facts, 8))
    )
    make()
    beats = until(
        lambda: len(dispatcher.of(ClientHeartbeat)) > 4 and dispatcher.of(ClientHeartbeat)
    )
    assert [beat.last for beat in beats[:2]] == [None, LastFact("d", 5)]
    assert {beat.last for beat in beats[2:]} == {LastFact("d", 9)}


def test_a_fact_learnt_while_another_request_waited_is_not_forgotten(dispatcher, make):
    waits, goes_on = threading.Event(), threading.Event()
    first, second, third = (
        LastFact(life, number) for life, number in (("1", 5), ("2", 6), ("3", 9))
    )

    def answer(beat):
        if beat.consumed:
            return ClientHeartbeatReply(1, last=second)
        if beat.last is None:
            return ClientHeartbeatReply(1, last=first)
        if beat.last == second:
            return NotFoundError("lost facts")
        waits.set()
        assert goes_on.wait(60)
        return ClientHeartbeatReply(1, last=third)

    dispatcher.answers[ClientHeartbeat] = answer
    agent = make()
    assert waits.wait(60)
    agent.report([StreamRange(0, 0, 4)], {}, 4, 0.0)
    agent.commit()
    goes_on.set()
    later = until(
        lambda: [
            beat.last
            for beat in dispatcher.of(ClientHeartbeat)
            if not beat.consumed and beat.last not in (None, first)
        ]
    )
    assert later[0] == second, "the third start is asked whether it has this fact"
    assert isinstance(until(lambda: list(agent.events))[0], LeasesLost)


def test_a_late_reply_of_an_earlier_start_confirms_nothing(dispatcher, make):
    waits, goes_on = threading.Event(), threading.Event()
    first, late, second = (
        LastFact(life, number) for life, number in (("1", 5), ("1", 6), ("2", 7))
    )

    def answer(beat):
        if beat.last is None:
            return ClientHeartbeatReply(1, last=first)
        if beat.last == second:
            return ClientHeartbeatReply(1, last=second)
        if beat.consumed:
            goes_on.set()
            until(lambda: agent.last == second)
            return ClientHeartbeatReply(1, last=late)
        waits.set()
        assert goes_on.wait(60)
        return ClientHeartbeatReply(1, last=second, intervals=Intervals(heartbeat=1e9))

    dispatcher.answers[ClientHeartbeat] = answer
    agent = make()
    assert waits.wait(60)
    agent.report([StreamRange(0, 0, 4)], {}, 4, 0.0)
    agent.commit()
    reports = [beat for beat in dispatcher.of(ClientHeartbeat) if beat.consumed]
    assert [report.last for report in reports] == [first, second]
    assert {report.consumed for report in reports} == {(StreamRange(0, 0, 4),)}


def test_under_another_name_it_begins_anew(dispatcher, make):
    dispatcher.answers[ClientHeartbeat] = lambda _: ClientHeartbeatReply(1, last=LastFact("d", 9))
    agent = make()
    until(lambda: dispatcher.of(ClientHeartbeat)[-1:] and dispatcher.of(ClientHeartbeat)[-1].last)
    dispatcher.answers[ClientHeartbeat] = lambda _: ClientHeartbeatReply(1)
    opened = OpenIterationReply(WORK, True, 1, (), (), last=LastFact("e", 3))
    agent.become(msgspec.structs.replace(OPENING, client="again"), opened)
    beats = until(
        lambda: [beat for beat in dispatcher.of(ClientHeartbeat) if beat.client == "again"]
    )
    assert beats[0].last == LastFact("e", 3)


@pytest.mark.parametrize("is_late", [False, True])
def test_under_another_name_errors_about_the_former_one_are_void(dispatcher, make, is_late):
    """A reader that counted as dead has resumed its own state: that is no error."""
    begun, goes_on = threading.Event(), threading.Event()

    def refuse(beat):
        if beat.client == "again":
            return ClientHeartbeatReply(1)
        begun.set()
        assert goes_on.wait(60)
        return AbortedError("another reader resumed its state")

    dispatcher.answers[ClientHeartbeat] = refuse
    agent = make()
    assert begun.wait(60)
    if not is_late:
        goes_on.set()
        until(lambda: agent.events)
    opened = OpenIterationReply(WORK, True, 1, (), ())
    agent.become(msgspec.structs.replace(OPENING, client="again"), opened)
    goes_on.set()
    until(lambda: [beat for beat in dispatcher.of(ClientHeartbeat) if beat.client == "again"])
    assert not [event for event in agent.events if isinstance(event, AbortedError)]


def test_a_reader_that_decides_by_itself_need_not_say_it(dispatcher, make):
    dispatcher.answers[ClientHeartbeat] = lambda _: ClientHeartbeatReply(1, last=LastFact("d", 9))
    make(leased=False)
    until(lambda: len(dispatcher.of(ClientHeartbeat)) > 2)
    assert {beat.last for beat in dispatcher.of(ClientHeartbeat)} == {None}


def test_leaving_returns_whether_the_dispatcher_knew_the_reader(dispatcher, make):
    dispatcher.answers[Leave] = lambda _: NotFoundError("lost facts")
    agent = make()
    assert not agent.stop()
    assert agent.stop(), "it has left"
    dispatcher.answers[Leave] = lambda _: UnavailableError("away")
    assert make().stop()
