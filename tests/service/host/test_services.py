"""Connecting: how a service is named, who serves it, and what is registered there."""

import threading

import pytest

import penstock as tf
from penstock.data import Dataset
from penstock.data.experimental import service
from penstock.errors import InvalidArgumentError, NotFoundError
from penstock.plan.references import decode_spec
from penstock.service.host import services
from penstock.service.host.services import session
from tests.integration.clusters import Calls, Cluster


@pytest.fixture(scope="module")
def cluster():
    with Cluster(2) as made:
        yield made


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("grpc://host:5000", ("grpc", "host:5000")),
        ("host:5000", ("grpc", "host:5000")),
        ("local://4", ("local", "4")),
        ("local://", ("local", "")),
    ],
)
def test_services_are_named_by_urls(given, expected):
    assert services.parse(given) == expected


@pytest.mark.parametrize("given", [None, "", 5, ("grpc", "host:5000")])
def test_what_is_no_url_is_refused(given):
    with pytest.raises(InvalidArgumentError, match="here: service must be a URL like"):
        services.parse(given, "here")


def test_a_scheme_without_slashes_is_no_host():
    with pytest.raises(InvalidArgumentError, match="'local:2' would be .* write local://2, or g"):
        services.parse("local:2")
    assert services.parse("grpc://local:2") == ("grpc", "local:2")


def test_two_schemes_are_too_many():
    with pytest.raises(InvalidArgumentError, match="'a://b://c' holds more than one '://'"):
        services.parse("a://b://c")


def test_the_error_for_an_unknown_scheme_lists_the_known_ones():
    with pytest.raises(NotFoundError, match="x:// is not registered; there are grpc://, local://"):
        services.parse("x://y")


def test_an_empty_address_is_refused():
    with pytest.raises(InvalidArgumentError, match="the address of the dispatcher is empty"):
        session("")


def test_a_process_has_one_session_with_a_dispatcher(cluster):
    address = cluster.target.partition("://")[2]
    assert session(address) is session(address)
    assert session(address).status()["dispatcher"] == session(address).dispatcher()


def test_datasets_are_registered_and_read_by_their_id(cluster):
    dataset = Dataset.range(9).map(lambda x: (x, {"a": x * 2}))
    given = service.register_dataset(cluster.target, dataset)
    address = cluster.target.removeprefix("grpc://")
    info = session(address).dataset(given.decode())
    assert decode_spec(info.spec) == dataset.element_spec
    assert (info.shape.kind, info.cardinality) == ("random", 9)
    made = service.from_dataset_id("distributed_epoch", cluster.target, given)
    assert [(int(x), int(y["a"])) for x, y in made] == [(x, x * 2) for x in range(9)]
    assert session(address).status()["datasets"]


def test_plans_are_sent_once(cluster, monkeypatch):
    rows = Dataset.range(100_000).batch(100_000).get_single_element()
    dataset = Dataset.from_tensor_slices(rows)
    one = session(cluster.target.partition("://")[2])
    sent = []
    call = one._call
    monkeypatch.setattr(one, "_call", lambda request, *rest: sent.append(request) or call(request))
    for _ in range(2):
        dataset.apply(cluster.distribute())
    data = [request.data for request in sent if type(request).__name__ == "PutPlan"]
    assert sum(map(bool, data)) == 1


def test_large_plans_travel_in_parts(cluster):
    rows = Dataset.range(2_000_000).batch(2_000_000).get_single_element()
    made = Dataset.from_tensor_slices(rows).apply(cluster.distribute())
    assert sum(len(batch) for batch in made.batch(100_000)) == 2_000_000


def test_a_dataset_is_registered_again_with_a_dispatcher_that_lost_its_state():
    dataset = Dataset.range(9)
    with Cluster(1) as first:
        made = dataset.apply(first.distribute())
        assert len(list(made)) == 9
        port = int(first.target.rpartition(":")[2])
    with Cluster(1, port=port):
        assert [int(x) for x in made] == list(range(9))


def test_an_iterator_continues_with_a_dispatcher_that_forgot_everything():
    """The only reader of a job needs only the plan and the list of workers from the dispatcher."""
    calls = Calls()
    with Cluster(1) as first:
        port = int(first.target.rpartition(":")[2])
        made = Dataset.range(5000).map(calls).apply(first.distribute(max_outstanding_requests=4))
        iterator = iter(made)
        found = [int(next(iterator)) for _ in range(10)]
    with Cluster(1, port=port):
        found += [int(x) for x in iterator]
    assert found == list(range(5000))


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda d: d.map(lambda x: x + 1), None),
        (lambda d: d.filter(lambda x: x > 2), None),
        (lambda d: d.filter(lambda x: x > 2).batch(2), "batch"),
        (lambda d: d.map(lambda x: x + 1).filter(lambda x: x > 2).take(3), "take"),
    ],
)
def test_what_cannot_be_divided_stays_here(cluster, make, reason):
    made = make(Dataset.range(9)).apply(cluster.distribute())
    assert [repr(x) for x in made] == [repr(x) for x in make(Dataset.range(9))]
    assert (reason is not None) == ("run in the client" in made.explain())
    if reason:
        assert f"{reason} and all after it run in the client" in made.explain()


def test_what_cannot_be_divided_runs_on_a_worker_where_several_read(cluster):
    made = Dataset.range(9).filter(lambda x: x > 2).enumerate()
    made = made.apply(cluster.distribute(job_name="not divided"))
    assert sorted((int(n), int(x)) for n, x in made) == [(x - 3, x) for x in range(3, 9)]


def test_a_service_that_was_started_for_a_dataset_is_shared_by_its_readers(monkeypatch):
    monkeypatch.setattr(services, "SCHEMES", dict(services.SCHEMES))
    started = []

    class Counting(services.RunningService):
        pass

    with Cluster(1) as cluster:
        address = cluster.target.partition("://")[2]

        def serve(rest):
            started.append(rest)
            return Counting(session(address))

        services.register_scheme("counting", serve)
        made = Dataset.range(3).apply(service.distribute("distributed_epoch", "counting://x"))
        assert [int(x) for x in made.repeat(3)] == [0, 1, 2] * 3
        assert started == ["x"]


def test_seeds_of_a_restored_state_are_those_of_the_saved_one(cluster):
    """A dataset that is built again draws new seeds where none were given."""

    def build():
        return Dataset.range(50).shuffle(50).apply(cluster.distribute())

    iterator = iter(build())
    before = [int(next(iterator)) for _ in range(20)]
    again = iter(build())
    again.load_state_dict(iterator.state_dict())
    assert sorted(before + [int(x) for x in again]) == list(range(50))
    assert [int(x) for x in iterator] != []


def test_options_reach_the_workers(cluster):
    options = tf.data.Options()
    options.deterministic = False
    made = Dataset.range(50).with_options(options).apply(cluster.distribute())
    assert sorted(map(int, made)) == list(range(50))


class Nobody:
    """A service that counts how often it is closed."""

    def __init__(self, address):
        self.session = object()
        self.address = address
        self.closed = threading.Event()

    def close(self):
        self.closed.set()


def test_other_schemes_plug_in(monkeypatch):
    monkeypatch.setattr(services, "SCHEMES", dict(services.SCHEMES))
    monkeypatch.setattr("penstock.service.protocol.timing.LOCAL_LINGER", 0.0)
    services.register_scheme("nobody", Nobody)
    assert services.parse("nobody://here") == ("nobody", "here")
    shared = services.SharedService(Nobody("here"))
    shared.users = 2
    shared.leave()
    assert not shared.service.closed.is_set()
    shared.leave()
    assert shared.service.closed.wait(60)


def test_a_scheme_that_is_registered_again_still_outlives_its_readers(monkeypatch):
    monkeypatch.setattr(services, "SCHEMES", dict(services.SCHEMES))
    services.register_scheme("grpc", Nobody)
    assert services.outlives_readers("grpc://here")
    services.register_scheme("nobody", Nobody)
    assert not services.outlives_readers("nobody://here")


def test_a_scheme_that_is_registered_again_takes_other_urls(monkeypatch):
    monkeypatch.setattr(services, "SCHEMES", dict(services.SCHEMES))
    with pytest.raises(InvalidArgumentError, match="local://here must name a number"):
        services.parse("local://here")
    services.register_scheme("local", Nobody)
    assert services.parse("local://here") == ("local", "here")
