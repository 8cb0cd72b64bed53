"""Opening: which work a reader gets, which readers may open it, and when it is forgotten."""

import pytest

from penstock.errors import (
    AbortedError,
    FailedPreconditionError,
    InternalError,
    InvalidArgumentError,
    NotFoundError,
)
from penstock.plan.shape import ENDLESS, Shape
from penstock.service.logic.state import Settings
from penstock.service.protocol.messages import (
    ClientHeartbeatReply,
    Hello,
    Leave,
    Ok,
    RegisterDataset,
    StreamRange,
)
from tests.service.logic.world import DATA, DYNAMIC, FILE, OFF, SINGLE, SPLIT, World

UNKNOWN = r"does not know this reader \(c\); it was restarted without a work_dir"


def two_workers(settings: Settings | None = None) -> World:
    world = World(settings)
    world.worker("v")
    world.worker("w")
    return world


@pytest.mark.parametrize(
    ("shape", "mode", "options", "form", "streams", "kept"),
    [
        (Shape("random"), DYNAMIC, {}, "random", 1, False),
        (Shape("random"), DYNAMIC, {"cached": True}, "random", 1, True),
        (SPLIT, DYNAMIC, {}, "split", 4, True),
        (Shape("split", ENDLESS), DYNAMIC, {}, "split", ENDLESS, True),
        (SPLIT, DYNAMIC, {"per_worker": True}, "share", 2, True),
        (SINGLE, DYNAMIC, {"per_worker": True}, "share", 2, True),
        (SPLIT, OFF, {}, "whole", ENDLESS, True),
        (SPLIT, DYNAMIC, {"consumers": 2}, "single", 1, True),
        (Shape("random"), DYNAMIC, {"consumers": 2}, "random", 1, True),
        (Shape("random"), OFF, {"consumers": 2}, "whole", 2, True),
    ],
)
def test_the_form_of_the_work(shape, mode, options, form, streams, kept) -> None:
    world = two_workers()
    consumer = 0 if "consumers" in options else -1
    opened = world.open("c", world.dataset(shape), mode=mode, consumer=consumer, **options)
    work = opened.work
    assert (work.form, work.streams, work.kept) == (form, streams, kept)
    assert (work.key, work.epoch, work.policy) == (7, (1,), 0)
    assert opened.leased == ("consumers" not in options)
    assert [info.worker for info in opened.workers] == ["v", "w"]


def test_static_sharding_follows_the_list() -> None:
    world = World(Settings(worker_addresses=("a:1", "b:1")))
    world.worker("w", "b:1")
    opened = world.open("c", world.dataset(), mode=DATA)
    assert (opened.work.form, opened.work.streams, opened.work.policy) == ("shard", 2, DATA)
    # Until its own worker registers, the other worker makes the first shard.
    assert world.places("c") == {0: "w", 1: "w"}
    world.worker("v", "a:1")
    assert world.places("c") == {0: "v", 1: "w"}


def test_static_sharding_needs_a_list() -> None:
    world = two_workers()
    with pytest.raises(NotFoundError, match=r"FILE gives .* no list .*\(worker_addresses=\["):
        world.open("c", world.dataset(), mode=FILE)


def test_an_unknown_mode() -> None:
    world = World()
    with pytest.raises(InvalidArgumentError, match="unknown processing mode 6"):
        world.open("c", world.dataset(), mode=6)


def test_names_of_iterations_are_never_used_again() -> None:
    world = World()
    first = world.open("c", world.dataset(), job=None).work.job
    assert first == "d/0"
    world.ask(Leave("c"))
    world.restart()
    assert world.open("b", world.dataset(), job=None).work.job == "d/d1.1"


def test_readers_of_a_job_share_its_repetitions() -> None:
    world = World()
    data = world.dataset()
    opened = [
        world.open(client, data, repetition=repetition, key=key)
        for client, repetition, key in (("a", 0, 1), ("b", 0, 2), ("c", 1, 3))
    ]
    assert opened[0].work == opened[1].work != opened[2].work
    assert opened[2].work.key == 3


def test_readers_without_a_name_are_alone() -> None:
    world = World()
    data = world.dataset()
    one, other, again = (world.open(client, data, job=None).work for client in ("a", "b", "a"))
    assert one.job != other.job
    assert one == again
    assert not world.open("a", data, job=None).leased


def test_a_client_that_opens_something_else_has_left_the_first() -> None:
    world = World()
    data = world.dataset()
    for repetition in (0, 1):
        world.open("a", data, job=None, repetition=repetition)
    assert list(world.state.iterations) == ["d/1"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"mode": OFF}, "processing_mode is OFF here and was DYNAMIC for the first reader"),
        ({"consumers": 1, "consumer": 0}, "num_consumers is 1 here and was 0"),
        ({"target": "LOCAL"}, "target_workers is LOCAL here and was AUTO"),
        ({"cached": True}, "the use of cross_trainer_cache is True here"),
        ({"per_worker": True}, "the use of per-worker operators is True here"),
    ],
)
def test_readers_of_a_job_must_agree(change: dict, message: str) -> None:
    world = World()
    data = world.dataset()
    world.open("a", data)
    with pytest.raises(InvalidArgumentError, match=rf"job_name='job'\): all readers .*{message}"):
        world.open("b", data, **change)


@pytest.mark.parametrize(
    ("structure", "spec", "cardinality", "message"),
    [
        ("s", b"spec", 7, "cardinality of the dataset is 7 here and was 100"),
        ("s", b"other", 100, "the element_spec of this dataset is not that of the first"),
        ("t", b"spec", 100, "the structure of this dataset is not that of the first"),
    ],
)
def test_readers_of_a_job_must_have_the_same_data(structure, spec, cardinality, message) -> None:
    world = World()
    world.open("a", world.dataset())
    other = RegisterDataset("d2", structure, spec, Shape("random"), cardinality)
    with pytest.raises(InvalidArgumentError, match=message):
        world.open("b", world.ask(other).dataset_id)


def test_datasets_that_differ_only_in_their_bytes_are_the_same() -> None:
    world = World()
    world.open("a", world.dataset())
    other = RegisterDataset("d2", "s", b"spec", Shape("random"), 100)
    assert world.open("b", world.ask(other).dataset_id).work.digest == "digest"


def test_local_workers_only() -> None:
    world = World()
    data = world.dataset()
    assert world.open("first", data, "a", host="here", target="LOCAL").workers == ()
    world.worker("w", host="there")
    with pytest.raises(InvalidArgumentError, match='"LOCAL", but none of the 1 workers runs on'):
        world.open("c", data, host="here", target="local")
    world.worker("v", host="here")
    opened = world.open("c", data, host="here", target="local")
    assert [info.worker for info in opened.workers] == ["v"]
    assert world.beat("c").workers == opened.workers


def test_finished_iterations_are_remembered() -> None:
    world = World()
    data = world.dataset()
    world.open("a", data)
    assert world.read("a", 100) == [(0, 0, 100)]
    assert world.lease("a").finished
    world.ask(Leave("a"))
    world.wait(world.settings.forget_after - 1)
    world.open("b", data)
    assert world.lease("b").finished
    world.ask(Leave("b"))
    world.wait(world.settings.forget_after)
    assert not world.state.jobs
    world.open("c", data)
    assert world.read("c", 100) == [(0, 0, 100)]


def job_read_by(*programs: str, elements: int = 100) -> tuple[World, str]:
    """A job of which `elements` were read, by clients that have left."""
    world = World()
    data = world.dataset()
    for program in programs:
        world.open(program, data, program=program)
    world.read(programs[0], elements)
    for program in programs:
        world.ask(Leave(program))
    return world, data


def test_a_program_that_runs_again_learns_that_the_job_was_read() -> None:
    world, data = job_read_by("a", "b")
    with pytest.raises(
        FailedPreconditionError,
        match=r"job_name='job'\): repetition 0 .* to its end by .* penstock forget URL 'job'",
    ):
        world.open("again", data, program="again")
    world.restart()
    with pytest.raises(FailedPreconditionError, match="read to its end"):
        world.open("again", data, program="again")


def test_a_second_read_of_a_finished_job_in_one_process_gets_nothing_with_a_warning() -> None:
    world, data = job_read_by("a", "b")
    assert (
        "by other readers, so this reader gets nothing"
        in world.open("c", data, program="b").warning
    )
    assert world.lease("c").finished


def test_a_reader_that_comes_late_while_other_readers_read_gets_nothing_with_a_warning() -> None:
    world, data = job_read_by("a", "b")
    world.open("a2", data, repetition=1, program="a")
    assert "gets nothing of it" in world.open("late", data, program="late").warning
    assert world.lease("late").finished
    assert world.lease("late").shared
    assert world.open("late2", data, repetition=1, program="late").warning == ""


def test_a_saved_state_of_a_finished_job_is_no_reason_to_complain() -> None:
    world, data = job_read_by("a")
    consumed = (StreamRange(0, 0, 90),)
    opened = world.open("b", data, program="b", resumes=("a",), consumed=consumed)
    assert opened.warning == ""
    assert world.leases("b", 100) == [(0, 90, 100)]


def test_a_program_that_runs_again_learns_that_it_gets_the_rest() -> None:
    world, data = job_read_by("a", elements=60)
    opened = world.open("again", data, program="again")
    assert "have left read 60 elements of this job, and this reader gets the rest" in opened.warning
    assert "gets the rest" not in world.open("beside", data, program="beside").warning


def test_jobs_of_datasets_that_are_named_by_id_belong_to_the_id() -> None:
    world = World()
    one, two = world.dataset(), world.dataset()
    for client, data in (("a", one), ("b", two)):
        world.open(client, data, by_id=True)
        assert world.leases(client, 100) == [(0, 0, 100)]
    world.open("c", one, by_id=True)
    assert world.record("c") is world.record("a")
    world.restart()
    assert world.record("b") is not world.record("a")


def test_a_reader_that_repeats_without_end_joins_the_current_repetition() -> None:
    world, data = job_read_by("a")
    world.open("a2", data, repetition=1, program="a")
    world.read("a2", 100)
    world.open("a3", data, repetition=2, program="a")
    world.read("a3", 40)
    for _ in range(2):  # The client may repeat the request.
        late = world.open("late", data, program="late", epoch=(3, 0), endless=True)
        assert (late.repetition, late.warning) == (2, "")
    assert world.leases("late", 100) == [(0, 40, 100)]
    world.beat("late", consumed=(StreamRange(0, 40, 100),))
    new = world.open("late2", data, program="late", repetition=1, epoch=(3, 1), endless=True)
    assert (new.repetition, new.work.epoch) == (3, (3, 3))


def test_a_part_of_an_endless_repetition_draws_by_its_own_round() -> None:
    """The round counts its repeats: it may have been opened more often."""
    world = World()
    data = world.dataset()
    opened = world.open("a", data, job=None, repetition=4, epoch=(0, 1), endless=True)
    assert (opened.repetition, opened.work.epoch) == (4, (0, 1))


def test_names_are_free_after_a_while_without_readers() -> None:
    world = World(Settings(job_gc_timeout=30.0, worker_timeout=60.0))
    data = world.dataset()
    world.open("a", data)
    world.read("a", 100)
    world.ask(Leave("a"))
    world.wait(29.0)
    assert world.state.jobs
    world.wait(1.0)
    assert not world.state.jobs
    assert not world.state.clients
    world.open("b", data, mode=OFF)


def test_iterations_without_a_name_go_with_their_reader() -> None:
    world = two_workers()
    data = world.dataset()
    world.open("a", data, job=None, mode=OFF)
    world.open("c", data, job=None)
    world.ask(Leave("a"))
    world.wait(11.0)
    assert not world.state.iterations
    assert not world.state.clients
    with pytest.raises(NotFoundError, match=UNKNOWN):
        world.beat("c")


def test_an_unknown_reader() -> None:
    world = World()
    with pytest.raises(NotFoundError, match=UNKNOWN):
        world.beat("c")
    with pytest.raises(NotFoundError, match=UNKNOWN):
        world.lease("c")
    assert world.ask(Leave("c")) == Ok()


def test_who_has_left_does_not_come_back() -> None:
    world = World()
    data = world.dataset()
    world.open("a", data)
    world.ask(Leave("a"))
    assert world.ask(Leave("a")) == Ok()
    with pytest.raises(AbortedError, match="reader a has left; iterate again"):
        world.open("a", data)
    with pytest.raises(AbortedError, match="reader a has left"):
        world.beat("a")


def test_who_was_lost_may_come_back() -> None:
    world = World()
    data = world.dataset()
    world.open("c", data)
    assert world.leases("c") == [(0, 0, 10)]
    world.wait(11.0)
    with pytest.raises(NotFoundError, match="or has not heard of it for 10 s"):
        world.beat("c")
    with pytest.raises(NotFoundError, match="c have expired, .* return under another name"):
        world.open("c", data)
    world.open("d", data, resumes=("c",), consumed=(StreamRange(0, 0, 4),))
    assert world.leases("d") == [(0, 4, 10), (0, 10, 14)]


def test_what_the_host_answers_never_comes_here() -> None:
    with pytest.raises(InternalError, match="Hello is answered by the host"):
        World().ask(Hello("3.11"))


def test_heartbeat_replies_have_only_what_is_new() -> None:
    world = two_workers()
    opened = world.open("a", world.dataset(), mode=OFF)
    beaten = world.beat("a", opened.version)
    again = world.beat("a", beaten.version)
    assert again == ClientHeartbeatReply(beaten.version)
    world.worker("x")
    news = world.beat("a", beaten.version)
    assert [info.worker for info in news.workers] == ["v", "w", "x"]
    assert [(info.stream, info.worker) for info in news.streams] == [(0, "v"), (1, "w"), (2, "x")]


def test_after_a_restart_all_readers_get_the_lists_again() -> None:
    world = two_workers()
    world.open("a", world.dataset(), mode=OFF)
    version = world.beat("a").version
    world.restart()
    assert world.beat("a", version).workers is not None


# Coordinated reads


def test_consumers_wait_for_each_other() -> None:
    world = two_workers()
    data = world.dataset()
    opened = world.open("a", data, consumer=0, consumers=2)
    assert (opened.ready, opened.missing) == (False, (1,))
    assert world.beat("a").missing == (1,)
    opened = world.open("b", data, consumer=1, consumers=2)
    assert (opened.ready, opened.missing) == (True, ())
    assert world.beat("a").ready
    for _ in range(3):
        world.wait(5.0)
        world.beat("a")
    beaten = world.beat("a")
    assert (beaten.ready, beaten.missing) == (True, (1,))
    world.restart()
    assert world.beat("a").ready


@pytest.mark.parametrize("consumer", [-1, 2])
def test_a_consumer_that_cannot_be(consumer: int) -> None:
    world = World()
    with pytest.raises(FailedPreconditionError, match=r"num_consumers \(2\), got " + str(consumer)):
        world.open("a", world.dataset(), consumer=consumer, consumers=2)


def test_consumers_need_a_name() -> None:
    world = World()
    with pytest.raises(InvalidArgumentError, match="num_consumers is given without job_name"):
        world.open("a", world.dataset(), job=None, consumer=0, consumers=2)


def test_the_newer_of_two_equal_consumers_wins() -> None:
    world = World()
    data = world.dataset()
    world.open("old", data, consumer=0, consumers=1)
    world.open("new", data, consumer=0, consumers=1)
    for call in (
        lambda: world.beat("old"),
        lambda: world.open("old", data, consumer=0, consumers=1),
    ):
        with pytest.raises(AbortedError, match="another reader has joined as consumer 0; only one"):
            call()
    assert world.beat("new").missing == ()
    with pytest.raises(FailedPreconditionError, match="Lease: the readers .* read without leases"):
        world.lease("new")


def test_a_lost_consumer_does_not_come_back_behind_a_newer_one() -> None:
    world = World()
    data = world.dataset()
    world.open("old", data, consumer=0, consumers=2)
    world.wait(11.0)
    world.open("new", data, consumer=0, consumers=2)
    world.ask(Leave("new"))
    with pytest.raises(AbortedError, match="another reader has joined as consumer 0; only one"):
        world.open("old", data, consumer=0, consumers=2)


def test_coordinated_readers_of_a_single_stream_ask_one_worker() -> None:
    world = two_workers()
    data = world.dataset(SPLIT)
    for consumer, client in enumerate("ab"):
        world.open(client, data, consumer=consumer, consumers=2)
        assert world.places(client) == {0: "v"}
    world.open("c", data, job="other", consumer=0, consumers=1)
    assert world.places("c") == {0: "w"}
