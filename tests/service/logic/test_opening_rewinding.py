"""Saved states: a reader that resumes gets the elements that were read after the save, once."""

import pytest

from penstock.errors import (
    AbortedError,
    DataLossError,
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
)
from penstock.plan.shape import ENDLESS, Shape
from penstock.service.protocol.messages import Leave, StreamRange
from tests.service.logic.world import OFF, SINGLE, World

SAVED = (StreamRange(0, 0, 10),)


def world_of(*clients: str, length: int = 50) -> World:
    world = World()
    world.dataset(Shape("random", length=length))
    for client in clients:
        world.open(client, "1000")
    return world


def rest(world: World, client: str) -> list[int]:
    """Reads all remaining elements of a client."""
    numbers: list[int] = []
    while grants := world.read(client, 7):
        numbers += [number for _, start, stop in grants for number in range(start, stop)]
    return sorted(numbers)


def test_what_was_read_since_is_read_again() -> None:
    world = world_of("a")
    world.read("a", 20)
    world.lease("a", 5)
    world.open("b", "1000", resumes=("a",), consumed=SAVED)
    assert rest(world, "b") == list(range(10, 50))
    with pytest.raises(AbortedError, match="another reader resumed a saved state of reader a"):
        world.beat("a")


def test_a_finished_iteration_continues_from_a_state() -> None:
    world = world_of("a")
    assert rest(world, "a") == list(range(50))
    assert world.record("a").is_finished
    world.ask(Leave("a"))
    for client in "bcd":
        world.open(client, "1000", resumes=("a",), consumed=SAVED)
        assert not world.record("a").is_finished
        assert rest(world, client) == list(range(10, 50))


def test_what_other_readers_read_stays_theirs() -> None:
    world = world_of("a", "b")
    world.read("a", 10)
    world.read("b", 10)
    world.lease("b", 10)
    world.read("a", 10)
    world.open("c", "1000", resumes=("a",), consumed=SAVED)
    assert rest(world, "c") == [*range(30, 50)]


def test_a_fresh_service_believes_the_state() -> None:
    world = World()
    world.dataset(Shape("random", length=50))
    opened = world.open("b", "1000", resumes=("a",), consumed=SAVED, key=42, repetition=3)
    assert opened.work.key == 42
    assert rest(world, "b") == list(range(10, 50))


def test_a_merged_state_is_for_several() -> None:
    world = world_of("a", "b")
    world.read("a", 10)
    world.read("b", 10)
    merged = {"resumes": ("a", "b"), "consumed": (StreamRange(0, 0, 5), StreamRange(0, 12, 14))}
    world.open("c", "1000", **merged)
    assert world.read("c", 10) == [(0, 5, 12), (0, 14, 17)]
    world.open("d", "1000", **merged)
    assert world.read("d", 10) == [(0, 17, 20), (0, 20, 27)]
    assert rest(world, "c") == [*range(27, 50)]


def test_a_reader_of_a_merged_state_that_was_lost_is_started_again() -> None:
    world = world_of("a", "b")
    world.read("a", 10)
    merged = {"resumes": ("a", "b"), "consumed": (StreamRange(0, 0, 5),)}
    for client in "cd":
        world.open(client, "1000", **merged)
    assert world.read("c", 5) == [(0, 5, 10)]
    assert world.read("d", 5) == [(0, 10, 15)]
    world.wait(6.0)
    world.beat("d")
    world.wait(6.0)
    world.open("e", "1000", **merged)
    assert rest(world, "e") == [*range(5, 10), *range(15, 50)]


def test_an_older_state_overtakes_all_that_came_of_it() -> None:
    world = world_of("a")
    world.read("a", 30)
    world.open("b", "1000", resumes=("a",), consumed=(StreamRange(0, 0, 20),))
    world.read("b", 5)
    world.open("c", "1000", resumes=("b",), consumed=(StreamRange(0, 0, 22),))
    world.read("c", 5)
    world.open("d", "1000", resumes=("a",), consumed=(StreamRange(0, 0, 4),))
    for client in "abc":
        with pytest.raises(AbortedError, match="saved state of reader"):
            world.beat(client)
    assert rest(world, "d") == list(range(4, 50))


def test_a_repeated_request_rewinds_nothing() -> None:
    world = world_of("a")
    world.read("a", 20)
    for _ in range(2):
        world.open("b", "1000", resumes=("a",), consumed=SAVED)
        world.read("b", 5)
    world.wait(11.0)
    # "b" expired. Its first request arrives again, and must not succeed as if nothing happened.
    with pytest.raises(NotFoundError, match="b have expired, .* return under another name"):
        world.open("b", "1000", resumes=("a",), consumed=SAVED)
    world.open("c", "1000")
    assert rest(world, "c") == list(range(20, 50))


def test_a_lost_reader_continues_from_its_own_state() -> None:
    world = world_of("a")
    world.read("a", 20)
    world.wait(11.0)
    world.open("b", "1000", resumes=("a",), consumed=SAVED)
    assert rest(world, "b") == list(range(10, 50))


def test_a_lost_reader_returns_as_often_as_it_is_lost() -> None:
    world = world_of("a")
    world.read("a", 20)
    names: tuple[str, ...] = ("a",)
    for name in "bc":
        world.wait(11.0)
        world.open(name, "1000", resumes=("a",), consumed=(StreamRange(0, 0, 20),), names=names)
        names = (*names, name)
    assert rest(world, "c") == list(range(20, 50))


def test_a_lost_reader_does_not_return_once_another_reader_continues_from_its_state() -> None:
    """Its request may be late, and it has read more elements than the state contains."""
    world = world_of("a")
    world.read("a", 20)
    world.wait(11.0)
    world.open("b", "1000", resumes=("a",), consumed=SAVED)
    with pytest.raises(AbortedError, match="another reader resumed a saved state of reader a"):
        world.open("c", "1000", resumes=("a",), consumed=(StreamRange(0, 0, 20),), names=("a",))
    assert rest(world, "b") == list(range(10, 50))


def test_what_was_set_aside_and_is_still_free_is_reported() -> None:
    world = world_of("a", "b")
    state = {"consumed": (StreamRange(0, 0, 4),), "held": (StreamRange(0, 4, 12),)}
    world.lease("a", 10)
    world.wait(5.0)
    world.beat("b")
    world.wait(6.0)
    # Meanwhile, another reader gets some of the elements that the lost reader held.
    (grant,) = world.lease("b", 6).grants
    opened = world.open("c", "1000", resumes=("a",), **state)
    given = {n for at in opened.held for n in range(at.start, at.stop)}
    taken = set(range(grant.range.start, grant.range.stop))
    assert given == set(range(4, 12)) - taken != set(range(4, 12))
    assert world.open("c", "1000", resumes=("a",), **state).held == opened.held


def test_known_ends_are_believed() -> None:
    world = World()
    world.worker("w")
    world.dataset(SINGLE)
    world.open("b", "1000", resumes=("a",), consumed=SAVED, finished=((0, 12),))
    assert rest(world, "b") == [10, 11]
    with pytest.raises(DataLossError, match="ended after 13 elements, but another reader got 12"):
        world.open("c", "1000", resumes=("a",), consumed=SAVED, finished=((0, 13),))


def test_what_lies_behind_the_end_is_not_believed() -> None:
    world = world_of("a", length=5)
    world.open("b", "1000", resumes=("x",), consumed=SAVED)
    assert rest(world, "b") == []
    assert world.record("b").is_finished


def test_a_state_of_other_random_numbers() -> None:
    world = world_of("a")
    with pytest.raises(FailedPreconditionError, match="repetition 0 was begun anew, with other"):
        world.open("b", "1000", resumes=("x",), consumed=SAVED, key=8)


@pytest.mark.parametrize(
    ("streams", "at"),
    [
        (1, StreamRange(1, 0, 1)),
        (1, StreamRange(-1, 0, 1)),
        (1, StreamRange(0, 5, 1)),
        (1, StreamRange(0, -1, 1)),
        (ENDLESS, StreamRange(1 << 40, 0, 1)),
    ],
)
def test_a_state_that_cannot_be(streams: int, at: StreamRange) -> None:
    world = World()
    world.dataset(Shape("split", streams))
    with pytest.raises(InvalidArgumentError, match="load_state_dict: .* which this dataset does"):
        world.open("b", "1000", resumes=("a",), consumed=(at,))


def test_a_state_with_an_end_that_cannot_be() -> None:
    world = World()
    world.dataset(SINGLE)
    with pytest.raises(InvalidArgumentError, match="elements 0 to 3 of stream 1, which this"):
        world.open("b", "1000", resumes=("a",), finished=((1, 3),))


def test_a_state_of_more_workers_than_there_can_be() -> None:
    world = World()
    world.dataset(SINGLE)
    with pytest.raises(InvalidArgumentError, match=r"has read 1099511627777 streams, one for each"):
        world.open("b", "1000", mode=OFF, job=None, finished=((1 << 40, 3),))


def test_states_of_coordinated_readers_are_their_own() -> None:
    world = World()
    world.dataset()
    world.open("a", "1000", consumer=0, consumers=1)
    opened = world.open(
        "b", "1000", consumer=0, consumers=1, resumes=("a",), consumed=(StreamRange(9, 0, 1),)
    )
    assert opened.ready
