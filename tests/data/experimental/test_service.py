"""The API of the data service: which arguments each call accepts, and its errors."""

import gc
import json
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from penstock.data import Dataset
from penstock.data.experimental import service
from penstock.element.spec import TensorSpec
from penstock.errors import (
    AlreadyExistsError,
    FailedPreconditionError,
    InvalidArgumentError,
    InvalidTypeError,
    NotAConfigError,
    NotADatasetError,
    NotFoundError,
    UnfitServerError,
    UnfitTypeError,
)
from penstock.plan.nodes import INFINITE, UNKNOWN

LOCAL = "local://1"
TEN = Dataset.range(10)


def distribute_ten(**arguments: Any) -> Dataset:
    given = {"processing_mode": "parallel_epochs", "service": LOCAL} | arguments
    return TEN.apply(service.distribute(**given))


MADE = [
    ({"processing_mode": "abc"}, InvalidArgumentError, "processing_mode must be .* got 'abc'"),
    ({"processing_mode": None}, InvalidArgumentError, "processing_mode must be .* got None"),
    ({"processing_mode": 1}, InvalidArgumentError, r"a ShardingPolicy, got 1 \(int\)"),
    ({"job_name": ""}, InvalidArgumentError, "job_name must not be empty; leave it out"),
    ({"job_name": 5}, UnfitTypeError, r"job_name must be a string, got 5 \(int\)"),
    ({"job_name": b"x"}, UnfitTypeError, r"job_name must be a string, got b'x' \(bytes\)"),
    ({"compression": "GZIP"}, InvalidArgumentError, "compression must be \"AUTO\", .* got 'GZIP'"),
    (
        {"job_name": "j", "consumer_index": 0},
        InvalidArgumentError,
        "consumer_index and num_consumers go together, got 0 and None; give both",
    ),
    (
        {"job_name": "j", "num_consumers": 2},
        InvalidArgumentError,
        "consumer_index and num_consumers go together, got None and 2; give both",
    ),
    (
        {"consumer_index": 0, "num_consumers": 1},
        InvalidArgumentError,
        "coordinated reads need a job_name, got None; consumers meet in a job",
    ),
    (
        {"job_name": "j", "consumer_index": 2, "num_consumers": 2},
        FailedPreconditionError,
        "consumer_index must be from 0 to 1 for 2 consumers, got 2",
    ),
    (
        {"job_name": "j", "consumer_index": -1, "num_consumers": 2},
        FailedPreconditionError,
        "consumer_index must be from 0 to 1 for 2 consumers, got -1",
    ),
    (
        {"job_name": "j", "consumer_index": 0, "num_consumers": 0},
        FailedPreconditionError,
        "num_consumers must be at least 1, got 0",
    ),
]

APPLIED = [
    ({"service": "://a"}, InvalidArgumentError, "'://a' has no scheme before '://'"),
    ({"service": ["grpc", "a:1"]}, UnfitTypeError, "service must be a string .* got .'grpc'"),
    (
        {"job_name": "j", "consumer_index": 0, "num_consumers": 1, "target_workers": "LOCAL"},
        InvalidArgumentError,
        r'target_workers="LOCAL" reads from .*\(num_consumers=1\) need the same workers',
    ),
    ({"data_transfer_protocol": 3}, InvalidTypeError, "data_transfer_protocol must be a string"),
    ({"service": None}, InvalidArgumentError, "service must be a URL like grpc://.* got None"),
    ({"service": ""}, InvalidArgumentError, "service must be a URL like grpc://.* got ''"),
    ({"service": ("a", "b", "c")}, InvalidArgumentError, "'a://b://c' holds more than one '://'"),
    ({"service": "grpc://a://b"}, InvalidArgumentError, "'grpc://a://b' holds more than one '://'"),
    ({"service": ("grpc", 5)}, InvalidTypeError, r"service must be a string, got 5 \(int\)"),
    (
        {"service": "foo://localhost:1"},
        NotFoundError,
        "foo:// is not registered; there are grpc://",
    ),
    (
        {"max_outstanding_requests": 0},
        InvalidArgumentError,
        "max_outstanding_requests must be at least 1, or -1 for the default, got 0",
    ),
    (
        {"max_outstanding_requests": -3},
        InvalidArgumentError,
        "max_outstanding_requests must be at least 1, or -1 for the default, got -3",
    ),
    (
        {"max_outstanding_requests": 1.5},
        InvalidTypeError,
        r"max_outstanding_requests must be an integer, got 1.5 \(float\)",
    ),
    ({"target_workers": "foo"}, InvalidArgumentError, 'must be "AUTO", "ANY" or "LOCAL", got'),
    ({"target_workers": 3}, InvalidTypeError, r"target_workers must be a string, got 3 \(int\)"),
    (
        {"data_transfer_protocol": "nope"},
        InvalidArgumentError,
        r'data_transfer_protocol must be "tcp", "shm" or None, got \'nope\' \(str\)',
    ),
    (
        {"cross_trainer_cache": service.CrossTrainerCache("t")},
        InvalidArgumentError,
        "cross_trainer_cache needs a job_name, and no num_consumers, got None and None",
    ),
    (
        {
            "cross_trainer_cache": service.CrossTrainerCache("t"),
            "job_name": "j",
            "consumer_index": 0,
            "num_consumers": 1,
        },
        InvalidArgumentError,
        "cross_trainer_cache needs a job_name, and no num_consumers, got 'j' and 1",
    ),
    (
        {"cross_trainer_cache": "x"},
        NotAConfigError,
        r"cross_trainer_cache must be a CrossTrainerCache, got 'x' \(str\)",
    ),
]


@pytest.mark.parametrize(("given", "error", "words"), MADE)
def test_distribute_refuses_at_once(
    given: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=f"^service.distribute: .*{words}"):
        service.distribute(**{"processing_mode": "parallel_epochs", "service": LOCAL} | given)


@pytest.mark.parametrize(("given", "error", "words"), APPLIED)
def test_distribute_refuses_when_it_is_applied(
    given: dict[str, Any], error: type[Exception], words: str
) -> None:
    made = service.distribute(**{"processing_mode": "parallel_epochs", "service": LOCAL} | given)
    with pytest.raises(error, match=f"^service.distribute: .*{words}"):
        TEN.apply(made)


@pytest.mark.parametrize(
    "given",
    [
        {"compression": None},
        {"compression": "SNAPPY"},
        {"max_outstanding_requests": 1},
        {"max_outstanding_requests": -1},
        {"target_workers": "any"},
        {"target_workers": None},
        {"data_transfer_protocol": "grpc"},
        {"processing_mode": service.ShardingPolicy.DYNAMIC},
        {"service": ("local", "2")},
        {"data_transfer_protocol": "tcp"},
        {"job_name": "j", "consumer_index": 0, "num_consumers": 1},
        {"job_name": "j", "cross_trainer_cache": service.CrossTrainerCache("t")},
    ],
)
def test_distribute_takes(given: dict[str, Any]) -> None:
    dataset = distribute_ten(**given)
    assert dataset.element_spec == TEN.element_spec
    is_alone = given.get("processing_mode") == service.ShardingPolicy.DYNAMIC
    assert dataset.cardinality() == (10 if is_alone else UNKNOWN)


def test_only_a_dataset_is_distributed() -> None:
    with pytest.raises(NotADatasetError, match=r"distribute: dataset must be a Dataset, got 5"):
        service.distribute("parallel_epochs", LOCAL)(5)  # type: ignore[arg-type]


def test_an_endless_dataset_stays_endless() -> None:
    endless = TEN.repeat().apply(service.distribute("parallel_epochs", LOCAL))
    assert endless.cardinality() == INFINITE


@pytest.mark.parametrize("trainer", ["", None])
def test_a_cache_needs_a_trainer(trainer: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="CrossTrainerCache: trainer_id must name a tra"):
        service.CrossTrainerCache(trainer)


def test_a_cache_knows_its_trainer() -> None:
    assert service.CrossTrainerCache(trainer_id=5).trainer_id == 5


Make = Callable[[], Any]

SERVERS: list[tuple[Make, type[Exception], str]] = [
    (
        lambda: service.DispatchServer(service.DispatcherConfig(standby=True)),
        InvalidArgumentError,
        "DispatcherConfig: standby needs a work_dir, got None; name a folder",
    ),
    (
        lambda: service.DispatchServer(service.DispatcherConfig(fault_tolerant_mode=True)),
        InvalidArgumentError,
        "DispatcherConfig: fault_tolerant_mode needs a work_dir, got None; name a folder",
    ),
    (
        lambda: service.DispatchServer(service.DispatcherConfig(port=-5)),
        UnfitServerError,
        "DispatcherConfig: port must be from 1 to 65535, or 0 for a free one, got -5",
    ),
    (
        lambda: service.DispatchServer(service.DispatcherConfig(port=65536)),
        UnfitServerError,
        "DispatcherConfig: port must be from 1 to 65535, or 0 for a free one, got 65536",
    ),
    (
        lambda: service.DispatchServer(service.DispatcherConfig(port=None)),  # type: ignore[arg-type]
        InvalidArgumentError,
        "DispatcherConfig: port must be an integer, got None",
    ),
    (
        lambda: service.DispatchServer(service.DispatcherConfig(port=1.5)),  # type: ignore[arg-type]
        InvalidTypeError,
        r"DispatcherConfig: port must be an integer, got 1.5 \(float\)",
    ),
    (
        lambda: service.DispatchServer(service.DispatcherConfig(protocol="foo")),
        UnfitServerError,
        "DispatcherConfig: protocol must be \"grpc\", got 'foo'",
    ),
    (
        lambda: service.DispatchServer(service.DispatcherConfig(functions="all")),
        InvalidArgumentError,
        'DispatcherConfig: functions must be "by_value" or "by_reference", got \'all\'',
    ),
    (
        lambda: service.DispatchServer(service.DispatcherConfig(worker_timeout_ms=-1)),
        InvalidArgumentError,
        "DispatcherConfig: worker_timeout_ms must be at least 0, got -1",
    ),
    (
        lambda: service.DispatchServer(5),  # type: ignore[arg-type]
        NotAConfigError,
        r"DispatchServer: config must be a DispatcherConfig, got 5 \(int\)",
    ),
    (
        lambda: service.WorkerServer(None),  # type: ignore[arg-type]
        NotAConfigError,
        "WorkerServer: config must be a WorkerConfig, got None",
    ),
    (
        lambda: service.WorkerServer(service.WorkerConfig(None)),  # type: ignore[arg-type]
        InvalidArgumentError,
        "WorkerConfig: dispatcher_address must be given, got None",
    ),
    (
        lambda: service.WorkerServer(service.WorkerConfig("")),
        UnfitServerError,
        "WorkerConfig: dispatcher_address must be host:port, got ''; it is what follows",
    ),
    (
        lambda: service.WorkerServer(service.WorkerConfig("localhost:1", protocol="foo")),
        UnfitServerError,
        "WorkerConfig: protocol must be \"grpc\", got 'foo'",
    ),
    (
        lambda: service.WorkerServer(
            service.WorkerConfig("localhost:1", data_transfer_protocol="pigeon")
        ),
        UnfitServerError,
        'WorkerConfig: data_transfer_protocol must be "tcp", "shm" or None, got \'pigeon\'',
    ),
    (
        lambda: service.WorkerServer(service.WorkerConfig("localhost:1", worker_tags="gpu")),
        InvalidTypeError,
        "WorkerConfig: worker_tags must be a list of strings, got 'gpu'",
    ),
    (
        lambda: service.WorkerServer(
            service.WorkerConfig("localhost:1", worker_tags=["gpu", 1])  # type: ignore[list-item]
        ),
        InvalidTypeError,
        r"WorkerConfig: worker_tags must be a list of strings, got \['gpu', 1\]",
    ),
    (
        lambda: service.WorkerServer(service.WorkerConfig("localhost:1", worker_tags=["", "gpu"])),
        UnfitServerError,
        r"WorkerConfig: worker_tags must not be empty, got \['', 'gpu'\]; leave the empty one out",
    ),
]


@pytest.mark.parametrize(("make", "error", "words"), SERVERS)
def test_servers_refuse(make: Make, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        make()


def test_what_a_server_cannot_be_started_with_is_a_runtime_error() -> None:
    assert issubclass(UnfitServerError, RuntimeError)
    assert issubclass(NotAConfigError, AttributeError)


def test_configs_are_named_tuples_with_tensorflows_defaults() -> None:
    assert service.DispatcherConfig()[:4] == (0, "grpc", None, False)
    assert service.WorkerConfig("localhost:1")[:1] == ("localhost:1",)
    assert service.DispatcherConfig()._replace(port=7).port == 7


@pytest.fixture
def dispatcher() -> Iterator[service.DispatchServer]:
    with service.DispatchServer() as server:
        yield server


@pytest.fixture
def worker(dispatcher: service.DispatchServer) -> Iterator[service.WorkerServer]:
    with worker_of(dispatcher) as server:
        yield server


def worker_of(dispatcher: service.DispatchServer) -> service.WorkerServer:
    return service.WorkerServer(service.WorkerConfig(dispatcher.target.removeprefix("grpc://")))


def test_a_server_starts_once_and_stops_once() -> None:
    server = service.DispatchServer(start=False)
    target = server.target
    assert target.startswith("grpc://localhost:")
    server.start()
    server.start()
    assert server.target == target
    server.stop()
    server.stop()
    server.join()
    with pytest.raises(FailedPreconditionError, match="DispatchServer.start: .* was stopped; make"):
        server.start()


def test_a_worker_starts_at_start(dispatcher: service.DispatchServer) -> None:
    address = dispatcher.target.removeprefix("grpc://")
    server = service.WorkerServer(service.WorkerConfig(address), start=False)
    assert dispatcher._num_workers() == 0
    with server:
        assert dispatcher._num_workers() == 1
        assert server.address.startswith("localhost:")
        assert server._num_tasks() == 0
    server.join()
    with pytest.raises(FailedPreconditionError, match="WorkerServer.start: .* was stopped; make"):
        server.start()


def test_a_drained_worker_has_stopped(worker: service.WorkerServer) -> None:
    worker.drain()
    worker.join()
    worker.drain()
    with pytest.raises(FailedPreconditionError, match="WorkerServer.start: .* was stopped; make"):
        worker.start()


def test_a_port_that_is_in_use_is_refused(dispatcher: service.DispatchServer) -> None:
    port = int(dispatcher.target.rpartition(":")[2])
    with pytest.raises(AlreadyExistsError, match=f"port {port} is in use"):
        service.DispatchServer(service.DispatcherConfig(port=port))


def test_a_port_is_free_as_soon_as_its_server_has_stopped() -> None:
    first = service.DispatchServer()
    first.stop()
    port = int(first.target.rpartition(":")[2])
    with service.DispatchServer(service.DispatcherConfig(port=port)) as second:
        assert second.target == first.target


def test_servers_that_are_dropped_stop() -> None:
    dispatcher = service.DispatchServer()
    worker = worker_of(dispatcher)
    hosted = [dispatcher._hosted.join, worker._hosted.join]
    desk, stopped = dispatcher._hosted._handler, worker._hosted._stopped
    del dispatcher, worker, hosted
    gc.collect()
    assert stopped.wait()
    assert desk.closed.wait()


def test_a_service_on_this_machine_needs_no_servers() -> None:
    squares = TEN.map(lambda x: x * x)
    assert list(squares.apply(service.distribute("distributed_epoch", LOCAL))) == list(squares)


@pytest.mark.usefixtures("worker")
@pytest.mark.parametrize(
    "form", [lambda url: url, lambda url: url[7:], lambda url: ("grpc", url[7:])]
)
def test_a_service_may_be_written_in_three_ways(
    dispatcher: service.DispatchServer, form: Callable[[str], Any]
) -> None:
    made = service.distribute("distributed_epoch", form(dispatcher.target))
    assert list(TEN.apply(made)) == list(TEN)


@pytest.mark.usefixtures("worker")
def test_datasets_by_their_ids(dispatcher: service.DispatchServer) -> None:
    target = dispatcher.target
    name = service.register_dataset(target, TEN)
    assert isinstance(name, bytes)
    read = service.from_dataset_id("distributed_epoch", target, name)
    assert read.element_spec == TEN.element_spec
    assert read.cardinality() == 10
    assert list(read) == list(TEN)
    general = TensorSpec(None, np.int64)
    assert service.from_dataset_id("distributed_epoch", target, name, general).element_spec == (
        general
    )


@pytest.mark.usefixtures("worker")
def test_datasets_by_names_of_ones_own(dispatcher: service.DispatchServer) -> None:
    target = dispatcher.target
    assert service.register_dataset(target, TEN.repeat(), dataset_id="mine") == b"mine"
    assert service.register_dataset(target, TEN.repeat(), dataset_id=b"mine") == b"mine"
    with pytest.raises(InvalidArgumentError, match="mine"):
        service.register_dataset(target, Dataset.range(3), dataset_id="mine")
    assert service.register_dataset(target, TEN, dataset_id="") != b""
    assert service.from_dataset_id("parallel_epochs", target, "mine").cardinality() == INFINITE


def test_datasets_that_cannot_be_registered_or_read(dispatcher: service.DispatchServer) -> None:
    target = dispatcher.target
    name = service.register_dataset(target, TEN)
    with pytest.raises(NotADatasetError, match="register_dataset: dataset must be a Dataset, got"):
        service.register_dataset(target, [1, 2])  # type: ignore[arg-type]
    with pytest.raises(InvalidTypeError, match="register_dataset: dataset_id must be a string, go"):
        service.register_dataset(target, TEN, dataset_id=5)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match="runs only as long as an iterator, and keeps"):
        service.register_dataset(LOCAL, TEN)
    with pytest.raises(InvalidArgumentError, match="from_dataset_id: local://1 runs only as long"):
        service.from_dataset_id("parallel_epochs", LOCAL, "1000")
    with pytest.raises(UnfitTypeError, match="dataset_id must be what register_dataset returned"):
        service.from_dataset_id("parallel_epochs", target, 99)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match="the spec of dataset 'zzz' is not known, as "):
        service.from_dataset_id("parallel_epochs", target, "zzz")
    with pytest.raises(NotFoundError, match="zzz"):
        service.from_dataset_id("parallel_epochs", target, "zzz", TEN.element_spec)
    for wrong in (TensorSpec((), np.float32), (TEN.element_spec,)):
        with pytest.raises(FailedPreconditionError, match="which are not all of"):
            service.from_dataset_id("parallel_epochs", target, name, wrong)
    with pytest.raises(InvalidArgumentError, match="which are not all of"):
        service.from_dataset_id("parallel_epochs", target, name, TensorSpec((1,), np.int64))
    with pytest.raises(InvalidTypeError, match="element_spec must hold specs such as TensorSpec"):
        service.from_dataset_id("parallel_epochs", target, name, 5)


def test_status_is_plain_data(
    dispatcher: service.DispatchServer, worker: service.WorkerServer
) -> None:
    found = json.loads(json.dumps(service.status(dispatcher.target)))
    assert [one["address"] for one in found["workers"]] == [worker.address]


@pytest.mark.usefixtures("worker")
def test_states_of_several_readers_become_one(dispatcher: service.DispatchServer) -> None:
    def reader() -> Any:
        made = service.distribute(
            "distributed_epoch", dispatcher.target, job_name="job", max_outstanding_requests=4
        )
        return iter(Dataset.range(100).apply(made))

    first, second = reader(), reader()
    read = [next(first) for _ in range(7)] + [next(second) for _ in range(5)]
    state = service.merge_states([first.state_dict(), second.state_dict()])
    first.close()
    second.close()
    third = reader()
    third.load_state_dict(state)
    assert sorted([*read, *third]) == list(range(100))


@pytest.mark.parametrize(
    ("config", "error", "match"),
    [
        (service.DispatcherConfig(worker_addresses="host"), InvalidTypeError, "a list of strings"),
        (service.DispatcherConfig(worker_addresses=[3]), InvalidTypeError, r"strings, got \[3\]"),
        (service.WorkerConfig(3), InvalidTypeError, "dispatcher_address must be a string, got 3"),
    ],
)  # fmt: skip
def test_configs_hold_addresses_as_text(config: Any, error: type, match: str) -> None:
    start = service.WorkerServer if len(config) == 15 else service.DispatchServer
    with pytest.raises(error, match=match):
        start(config)
