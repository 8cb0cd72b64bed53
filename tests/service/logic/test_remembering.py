"""What a dispatcher that has lost facts says to readers, and how they settle it."""

import pytest

from penstock.errors import NotFoundError
from penstock.service.logic.dispatcher import snapshot
from penstock.service.logic.remembering import in_doubt, spans, stamped
from penstock.service.protocol.messages import Address, Lease, Leave, Ok
from tests.service.logic.world import SPLIT, World


@pytest.fixture
def world() -> World:
    world = World()
    world.worker("w")
    world.open("a", world.dataset())
    world.open("b", "1000")
    return world


def said(world: World, reply):
    return stamped(world.state, reply).last


def test_facts_are_counted_through_restarts_and_snapshots(world):
    before = world.state.facts
    assert before == len(world.journal)
    world.compact()
    world.restart()
    assert world.state.facts == before + 1
    assert snapshot(world.replayed()) == snapshot(world.state)
    world.beat("a")
    assert world.state.facts == before + 1, "what is not journalled is not counted"


def test_an_answer_names_the_last_fact_that_it_rests_on(world):
    last = said(world, world.lease("a"))
    assert (last.life, last.number) == ("d", world.state.facts)
    assert stamped(world.state, Ok()) == Ok()


@pytest.mark.parametrize("compacted", [False, True])
def test_what_was_kept_is_known_after_any_number_of_restarts(world, compacted):
    last = said(world, world.lease("a"))
    for _ in range(3):
        if compacted:
            world.compact()
        world.restart()
        world.ask(Lease("a", 1, 10, last=last))
        last = said(world, world.lease("a"))


def test_starts_of_long_ago_are_forgotten(world):
    last = said(world, world.lease("a"))
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
    last = said(world, world.lease("a"))
    world.journal = world.journal[:kept]
    world.restart()
    words = f"has lost facts: reader a was told of fact {last.number}, and .* with fact {kept} "
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
    last = said(world, world.beat("a"))
    world.journal = world.journal[:kept]
    world.state = world.replayed()
    with pytest.raises(NotFoundError, match=f"was told of fact {last.number}, and .* fact 0 "):
        world.beat("a", last=last)


def test_a_reader_that_comes_back_is_told_what_others_have_got_too(world):
    kept = len(world.journal)
    assert world.leases("a") == [(0, 0, 10)]
    world.journal = world.journal[:kept]
    world.restart()
    assert world.leases("b", 4) == [(0, 0, 4)]
    for _ in range(2):  # The answer may be lost, and the request come again.
        opened = world.open("a2", "1000", resumes=("a",), consumed=(Address(0, 2, 6),))
        assert opened.repeated == (Address(0, 2, 4),)
    assert world.leases("b") == [(0, 6, 16)]
    assert world.open("a3", "1000", resumes=("a",), consumed=(Address(0, 4, 6),)).repeated == ()


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
    assert in_doubt(world.state) == ["job 'job', repetition 0: elements 7 to 99 of stream 0"]
    world.open("c", world.dataset(SPLIT), job="files")
    world.lease("c", 5)
    world.beat("c", ended=((1, 1), (2, 1), (3, 1)))
    assert in_doubt(world.state)[1:] == ["job 'files', repetition 0: elements 5 on of stream 0"]


def test_many_addresses_are_counted():
    text = spans(tuple(Address(stream, 0, 5) for stream in range(10)))
    assert text.startswith("elements 0 to 4 of stream 0; ")
    assert text.endswith("elements 0 to 4 of stream 7; and 2 more")
