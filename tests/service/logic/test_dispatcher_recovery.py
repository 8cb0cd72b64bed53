"""A restored dispatcher has the same state, or refuses readers that know of facts it lost."""

import msgspec
import pytest

from penstock.errors import InternalError, NotFoundError
from penstock.plan.shape import Shape
from penstock.service.logic.dispatcher import (
    describe_unrecorded,
    snapshot,
    stamp_reply,
)
from penstock.service.logic.facts import RangesClaimed
from penstock.service.logic.leases import Ranges, describe_ranges
from penstock.service.logic.state import Settings, State
from penstock.service.protocol.messages import Lease, Leave, Ok, StreamRange
from tests.service.logic.invariants import check
from tests.service.logic.world import OFF, SINGLE, SPLIT, World


@pytest.fixture
def world() -> World:
    world = World()
    world.worker("w")
    world.open("a", world.dataset())
    world.open("b", "1000")
    return world


def find_last(world: World, reply):
    return stamp_reply(world.state, Lease("a", 1, 10), reply).last


def test_facts_are_counted_through_restarts_and_snapshots(world):
    before = world.state.facts
    assert before == len(world.journal)
    world.compact()
    world.restart()
    assert world.state.facts == before + 1
    assert snapshot(world.replay_journal()) == snapshot(world.state)
    world.beat("a")
    assert world.state.facts == before + 1, "what is not journalled is not counted"


def test_an_answer_names_the_last_fact_that_it_rests_on(world):
    last = find_last(world, world.lease("a"))
    assert (last.life, last.number) == ("d", world.state.facts)
    assert stamp_reply(world.state, Leave("a"), Ok()) == Ok()


@pytest.mark.parametrize("compacted", [False, True])
def test_what_was_kept_is_known_after_any_number_of_restarts(world, compacted):
    last = find_last(world, world.lease("a"))
    for _ in range(3):
        if compacted:
            world.compact()
        world.restart()
        world.ask(Lease("a", 1, 10, last=last))
        last = find_last(world, world.lease("a"))


def test_starts_of_long_ago_are_forgotten(world):
    last = find_last(world, world.lease("a"))
    for _ in range(70):
        world.restart()
    assert len(world.state.lives) == 64
    with pytest.raises(NotFoundError, match="has lost facts"):
        world.beat("a", last=last)


@pytest.mark.parametrize(
    "ask",
    [
        lambda world, last: world.beat("a", last=last),
        lambda world, last: world.lease("a", last=last),
        lambda world, last: world.ask(Leave("a", last=last)),
    ],
)
def test_a_dispatcher_that_knows_less_than_its_reader_says_so(world, ask):
    kept = len(world.journal)
    last = find_last(world, world.lease("a"))
    world.journal = world.journal[:kept]
    world.restart()
    words = f"has lost facts: reader a knows of fact {last.number}, and .* with fact {kept} "
    with pytest.raises(NotFoundError, match=words):
        ask(world, last)
    # Also when it has as many facts again.
    world.lease("b")
    world.read("b")
    assert world.state.facts > last.number
    with pytest.raises(NotFoundError, match=words):
        ask(world, last)


def test_an_older_copy_of_the_journal_does_not_know_later_starts(world):
    kept = len(world.journal)
    world.restart()
    last = find_last(world, world.beat("a"))
    world.journal = world.journal[:kept]
    world.state = world.replay_journal()
    with pytest.raises(NotFoundError, match=f"knows of fact {last.number}, and .* fact 0 "):
        world.beat("a", last=last)


def test_a_reader_that_returns_learns_what_other_readers_got_as_well(world):
    kept = len(world.journal)
    assert world.leases("a") == [(0, 0, 10)]
    world.journal = world.journal[:kept]
    world.restart()
    assert world.leases("b", 4) == [(0, 0, 4)]
    for _ in range(2):  # The answer may be lost, and the client repeats the request.
        opened = world.open("a2", "1000", resumes=("a",), consumed=(StreamRange(0, 2, 6),))
        assert opened.repeated == (StreamRange(0, 2, 4),)
    assert world.leases("b") == [(0, 6, 16)]
    assert world.open("a3", "1000", resumes=("a",), consumed=(StreamRange(0, 4, 6),)).repeated == ()


def test_names_of_lost_iterations_are_not_given_again():
    world = World()
    dataset = world.dataset()
    kept = len(world.journal)
    first = world.open("a", dataset, job=None).work.job
    world.journal = world.journal[:kept]
    world.restart()
    assert world.open("b", dataset, job=None).work.job != first


def test_what_is_in_doubt_is_named(world):
    world.read("a", 7)
    assert describe_unrecorded(world.state) == [
        "job 'job', repetition 0: elements 7 to 99 of stream 0"
    ]
    world.open("c", world.dataset(SPLIT), job="files")
    world.lease("c", 5)
    world.beat("c", ended=((1, 1), (2, 1), (3, 1)))
    assert describe_unrecorded(world.state)[1:] == [
        "job 'files', repetition 0: elements 5 on of stream 0"
    ]


def test_many_addresses_are_counted():
    text = describe_ranges(tuple(StreamRange(stream, 0, 5) for stream in range(10)))
    assert text.startswith("elements 0 to 4 of stream 0; ")
    assert text.endswith("elements 0 to 4 of stream 7; and 2 more")


def busy() -> World:
    """A world with readers of many kinds, which have read, leased, left and resumed."""
    world = World()
    for worker in "uvw":
        world.worker(worker)
    split, random = world.dataset(SPLIT), world.dataset(Shape("random", length=50))
    world.open("a", split)
    world.open("b", split)
    world.read("a", 10)
    world.lease("b", 10, ended=((0, 10), (3, 1)))
    world.lease("a", 10)
    world.open("c", random, "random")
    world.read("c", 20)
    world.ask(Leave("c"))
    world.open("d", random, "random", resumes=("c",), consumed=(StreamRange(0, 0, 5),))
    world.lease("d")
    world.open("e", random, None, OFF)
    world.open("f", random, "together", consumer=0, consumers=1)
    world.open("g", random, "left", OFF)
    world.ask(Leave("g"))
    world.open("h", split, "cached", cached=True, group="x")
    world.lease("h")
    return world


def restore_state(state: State) -> State:
    new = State(state.settings)
    for fact in snapshot(state):
        new.apply(fact, 0.0)
    return new


def test_a_journal_gives_the_same_state() -> None:
    world = busy()
    again = world.replay_journal()
    check(again)
    assert snapshot(again) == snapshot(world.state)


def test_a_snapshot_gives_the_same_state() -> None:
    world = busy()
    again = restore_state(world.state)
    check(again)
    assert snapshot(again) == snapshot(world.state)
    assert again.active_jobs() == world.state.active_jobs()


def test_a_snapshot_is_shorter_than_its_journal() -> None:
    world = World()
    world.open("a", world.dataset(Shape("random")))
    for _ in range(50):
        world.read("a")
    before = len(world.journal)
    world.compact()
    assert len(world.journal) < 10 < before
    assert world.leases("a", 5) == [(0, 500, 505)]
    assert snapshot(world.replay_journal()) == snapshot(world.state)


@pytest.mark.parametrize("shape", [Shape("random"), Shape("split", streams=100_000)])
def test_what_many_have_read_in_turns_goes_into_few_bytes(shape: Shape) -> None:
    count = 50_000
    world = World(checked=False)
    data = world.dataset(shape)
    for client in ("a", "b"):
        world.open(client, data)
    by_stream = shape.kind == "split"
    for client, first in (("a", 0), ("b", 1)):
        turns = range(first, count, 2)
        at = [StreamRange(i, 0, 1) if by_stream else StreamRange(0, i, i + 1) for i in turns]
        ends = tuple((i, 1) for i in turns) if by_stream else ()
        world.commit((RangesClaimed(client, tuple(at), ends),))
    facts = snapshot(world.state)
    assert sum(map(len, map(msgspec.msgpack.encode, facts))) < count
    again = State(world.settings)
    for fact in facts:
        again.apply(fact, world.now)
    assert snapshot(again) == facts
    check(again)
    found = again.iterations[world.record("a").work.job]
    assert [member.consumed.count for member in found.members.values()] == [count // 2] * 2


def test_the_name_in_the_journal_stays() -> None:
    world = World(Settings(dispatcher="given"))
    assert world.state.dispatcher == "d"
    world.restart()
    assert (world.state.dispatcher, world.state.starts) == ("d", 2)
    assert State(Settings(dispatcher="given")).dispatcher == "given"


def group(world: World):
    return world.state.group(world.state.clients["a"])


def lease_twice(world: World) -> None:
    group(world).tracks[0].held["b"] = Ranges([(0, 1)])


def forget_a_client(world: World) -> None:
    world.state.clients["a"].standing = "lost"


def forget_leases(world: World) -> None:
    group(world).holders.clear()


def lose_elements(world: World) -> None:
    group(world).tracks[0].reached += 1


def pass_the_end(world: World) -> None:
    world.record("a").ends[0] = 5


def consume_the_unbegun(world: World) -> None:
    world.state.clients["a"].consumed.add(7, [(0, 1)])


def misplace(world: World) -> None:
    world.state.roster.workers["w"].streams.clear()


def misplace_elsewhere(world: World) -> None:
    world.state.roster.workers["w"].streams["d/9", 0] = None


def finish_too_early(world: World) -> None:
    group(world).done.add(0, 1)


def hide_a_worker(world: World) -> None:
    world.state.roster.workers["w"].suspected = True


def idle_and_active(world: World) -> None:
    world.state.active.clear()


@pytest.mark.parametrize(
    ("breaks", "message"),
    [
        (lease_twice, "stream 0: given twice"),
        (forget_a_client, "a is not here"),
        (forget_leases, "but leases {'a': 10}"),
        (lose_elements, "stream 0: lost elements"),
        (pass_the_end, "0 has ended"),
        (consume_the_unbegun, "that were not begun are consumed"),
        (misplace, "stream 0 is made by nobody"),
        (misplace_elsewhere, "worker w makes stream 0 of d/9"),
        (finish_too_early, "0 is done or not"),
        (hide_a_worker, "workers that may get more"),
        (idle_and_active, "is active"),
    ],
)
def test_what_is_broken_is_noticed(breaks, message: str) -> None:
    world = World()
    world.worker("w")
    world.open("a", world.dataset(SINGLE))
    world.lease("a")
    breaks(world)
    with pytest.raises(InternalError, match=f"the state is broken: .*{message}"):
        check(world.state)
