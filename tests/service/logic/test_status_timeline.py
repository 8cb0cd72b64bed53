"""What the time line of a dispatcher says about facts."""

from penstock.service.logic.dispatcher import decide, tick
from penstock.service.logic.facts import DispatcherStarted
from penstock.service.logic.state import Settings
from penstock.service.logic.status import MOST_INCIDENTS, Timeline
from penstock.service.protocol.messages import (
    ClientHeartbeat,
    Leave,
    LeaveWorker,
    RegisterWorker,
    Request,
    WorkerHeartbeat,
    WorkerInfo,
)
from tests.service.logic.world import SPLIT, World

KINDS = set("joined left lost unreachable moved crashed failed began ended removed".split())
"""The kinds that `penstock top`, the dashboard and the docs know."""


class Story:
    """A dispatcher whose facts are recorded."""

    def __init__(self) -> None:
        self.world, self.line = World(Settings(worker_timeout=8.0)), Timeline()

    def ask(self, request: Request) -> None:
        self._commit(decide(self.world.state, request, self.world.now).facts)

    def wait(self, seconds: float) -> None:
        self.world.now += seconds
        self._commit(tick(self.world.state, self.world.now), is_expired=True)

    def _commit(self, facts, is_expired=False) -> None:
        for fact in facts:
            self.line.record(self.world.state, fact, self.world.now, is_expired)
            self.world.state.apply(fact, self.world.now)

    def texts(self) -> list[str]:
        rows = self.line.as_rows()
        assert {row["kind"] for row in rows} <= KINDS
        return [f"{row['kind']}: {row['text']}" for row in rows]


def join(story: Story, worker: str) -> None:
    story.ask(RegisterWorker(WorkerInfo(worker, f"{worker}:1", "h"), ""))


def test_workers_come_and_go() -> None:
    story = Story()
    join(story, "u")
    join(story, "v")
    story.ask(LeaveWorker("u"))
    story.wait(1000.0)
    assert story.texts() == [
        "joined: worker u:1",
        "joined: worker v:1",
        "left: worker u:1",
        "lost: worker v:1: silent for 8 s",
    ]
    assert story.line.as_rows()[-1]["time"] == story.world.now


def test_streams_of_a_lost_worker_move() -> None:
    story = Story()
    join(story, "u")
    story.world.open("a", story.world.dataset(SPLIT))
    story.world.lease("a", 10)
    join(story, "v")
    story.wait(7.0)
    story.ask(WorkerHeartbeat("v"))
    story.wait(4.0)
    assert story.texts()[1:] == [
        "joined: worker v:1",
        "lost: worker u:1 with 4 streams: silent for 8 s",
        "moved: 4 streams of job 'job' to 1 worker",
        "lost: reader of job 'job': silent for 10 s",
    ]


def test_a_suspected_worker_is_named_once() -> None:
    story = Story()
    for worker in "uv":
        join(story, worker)
    story.world.open("a", story.world.dataset(SPLIT))
    for _ in range(2):
        story.ask(ClientHeartbeat("a", 0, lost=("u",)))
    assert [text for text in story.texts() if "unreachable" in text] == [
        "unreachable: worker u:1, for a reader"
    ]


def test_crashes_and_failures_are_counted_from_the_second_heartbeat_on() -> None:
    story = Story()
    join(story, "u")
    for restarts, failures in ((3, 5), (4, 5), (4, 7), (4, 7)):
        story.world.now += 1.0
        story.ask(WorkerHeartbeat("u", restarts=restarts, failures=failures))
    assert story.texts()[1:] == [
        "crashed: 1 plan process of worker u:1",
        "failed: 2 elements on worker u:1",
    ]


def test_readers_and_jobs() -> None:
    story = Story()
    dataset = story.world.dataset(SPLIT)
    story.world.open("a", dataset)
    story.ask(Leave("a"))
    assert story.texts() == ["left: reader of job 'job'"]


def test_starts_are_told_apart() -> None:
    line, world = Timeline(), World()
    line.record(world.state, DispatcherStarted("d2"), 1.0)
    assert line.as_rows() == [
        {"time": 1.0, "kind": "began", "text": "dispatcher restarted (start 2)"}
    ]


def test_the_earliest_incidents_are_dropped() -> None:
    story = Story()
    for number in range(MOST_INCIDENTS + 1):
        join(story, f"w{number}")
    assert len(story.texts()) == MOST_INCIDENTS
    assert story.texts()[0] == "joined: worker w1:1"
