"""Small programs about the data service, which TensorFlow and `penstock.tf` run alike.

They are like those of `dataset_programs`: mostly wrong arguments, with the kind of the error and
the moment of it.
"""

from __future__ import annotations

import contextlib
import pathlib
from collections.abc import Iterator
from typing import Any

from tests.tf.dataset_programs import Program, attempt, elements

SERVICES: dict[str, Program] = {}


def service_program(function: Program) -> Program:
    SERVICES[function.__name__] = function
    return function


@contextlib.contextmanager
def cluster(tf: Any, workers: int = 1, **config: Any) -> Iterator[Any]:
    """A dispatcher and workers in this process."""
    service = tf.data.experimental.service
    dispatcher = service.DispatchServer(service.DispatcherConfig(**config))
    address = dispatcher.target.split("://")[1]
    started = [
        service.WorkerServer(service.WorkerConfig(dispatcher_address=address))
        for _ in range(workers)
    ]
    try:
        yield dispatcher
    finally:
        for worker in started:
            worker.stop()
        dispatcher.stop()


@service_program
def distribute_arguments(tf: Any, folder: pathlib.Path) -> Any:
    service = tf.data.experimental.service
    dataset = tf.data.Dataset.range(3)
    with cluster(tf) as dispatcher:

        def run(**options: Any) -> Any:
            given = {"processing_mode": "parallel_epochs", "service": dispatcher.target} | options
            return elements(lambda: dataset.apply(service.distribute(**given)))

        def call(**options: Any) -> Any:
            """Only the call itself, without a dataset."""
            given = {"processing_mode": "parallel_epochs", "service": dispatcher.target} | options
            return attempt(lambda: callable(service.distribute(**given)))

        job = {"job_name": "job"}
        return {
            "plain": run(),
            "mode": run(processing_mode="nonsense"),
            "mode number": run(processing_mode=3),
            "mode none": run(processing_mode=None),
            "mode policy": run(processing_mode=service.ShardingPolicy.OFF),
            "mode file": run(processing_mode=service.ShardingPolicy.FILE),
            "mode hint": run(processing_mode=service.ShardingPolicy.HINT),
            "mode call": call(processing_mode="nonsense"),
            "service empty": run(service=""),
            "service none": run(service=None),
            "service number": run(service=5),
            "service list": run(service=["grpc", "localhost:1"]),
            "service no protocol": run(service=dispatcher.target.split("://")[1]),
            "service no address": run(service="grpc://"),
            "service no protocol name": run(service="://localhost:1"),
            "service other protocol": run(service="grp+x://localhost:1"),
            "service pair": run(service=("grpc", dispatcher.target.split("://")[1])),
            "service triple": run(service=("grpc", "localhost", "1")),
            "service pair of numbers": run(service=(1, 2)),
            "job number": run(job_name=3),
            "job empty": run(job_name=""),
            "job bytes": run(job_name=b"name"),
            "job call": call(job_name=3),
            "consumer without job": run(consumer_index=0, num_consumers=1),
            "index too large": run(consumer_index=2, num_consumers=2, **job),
            "consumers 0": run(consumer_index=0, num_consumers=0, **job),
            "index text": run(consumer_index="0", num_consumers=2, **job),
            "consumers float": run(consumer_index=0, num_consumers=2.0, **job),
            "requests 0": run(max_outstanding_requests=0),
            "requests -1": run(max_outstanding_requests=-1),
            "requests -2": run(max_outstanding_requests=-2),
            "requests text": run(max_outstanding_requests="4"),
            "requests float": run(max_outstanding_requests=1.5),
            "requests 1": run(max_outstanding_requests=1),
            "protocol number": run(data_transfer_protocol=3),
            "protocol grpc": run(data_transfer_protocol="grpc"),
            "compression none": run(compression=None),
            "compression auto": run(compression="AUTO"),
            "compression snappy": run(compression="SNAPPY"),
            "compression other": run(compression="nonsense"),
            "compression lower": run(compression="auto"),
            "compression number": run(compression=3),
            "compression call": call(compression="nonsense"),
            "cache text": run(cross_trainer_cache="x", **job),
            "cache number": run(cross_trainer_cache=3, **job),
            "target lower": run(target_workers="any"),
            "target local": run(target_workers="local"),
            "target none": run(target_workers=None),
            "target other": run(target_workers="nonsense"),
            "target empty": run(target_workers=""),
            "target number": run(target_workers=3),
            "target call": call(target_workers="nonsense"),
            "no dataset": attempt(lambda: service.distribute("parallel_epochs", "grpc://x:1")(3)),
        }


@service_program
def register_arguments(tf: Any, folder: pathlib.Path) -> Any:
    service = tf.data.experimental.service
    dataset = tf.data.Dataset.range(3)
    with cluster(tf) as dispatcher:

        def run(**options: Any) -> Any:
            given = {"service": dispatcher.target, "dataset": dataset} | options
            return attempt(lambda: service.register_dataset(**given) is not None)

        target = dispatcher.target
        identity = service.register_dataset(target, dataset, dataset_id="three")
        return {
            "plain": run(),
            "id": run(dataset_id="one"),
            "id again": run(dataset_id="one"),
            "id of another": run(dataset_id="one", dataset=tf.data.Dataset.range(4)),
            "id of another spec": run(dataset_id="one", dataset=tf.data.Dataset.from_tensors(1.0)),
            "id number": run(dataset_id=3),
            "id empty": run(dataset_id=""),
            "service empty": run(service=""),
            "service none": run(service=None),
            "service pair": run(service=("grpc", target.split("://")[1])),
            "dataset list": run(dataset=[1, 2]),
            "dataset none": run(dataset=None),
            "compression other": run(compression="nonsense"),
            "compression none": run(compression=None),
            "text of id": attempt(lambda: tf.constant(identity)),
        }


@service_program
def from_id_arguments(tf: Any, folder: pathlib.Path) -> Any:
    service = tf.data.experimental.service
    dataset = tf.data.Dataset.range(3)
    with cluster(tf) as dispatcher:
        identity = service.register_dataset(dispatcher.target, dataset)
        named = service.register_dataset(dispatcher.target, dataset, dataset_id="three")
        plain = service.register_dataset(dispatcher.target, dataset, compression=None)
        scalar = tf.TensorSpec([], tf.int64)

        def run(**options: Any) -> Any:
            given = {
                "processing_mode": "parallel_epochs",
                "service": dispatcher.target,
                "dataset_id": identity,
                "element_spec": scalar,
            }
            return elements(lambda: service.from_dataset_id(**(given | options)))

        return {
            "plain": run(),
            "no spec": run(element_spec=None),
            "named": run(dataset_id=named),
            "by text": run(dataset_id="three"),
            "by tensor": run(dataset_id=tf.constant("three")),
            "uncompressed": run(dataset_id=plain, element_spec=None),
            "unknown": run(dataset_id="nonsense", element_spec=None),
            "unknown with spec": run(dataset_id="nonsense"),
            "number": run(dataset_id=3, element_spec=None),
            "none": run(dataset_id=None, element_spec=None),
            "wrong dtype": run(element_spec=tf.TensorSpec([], tf.string)),
            "wrong shape": run(element_spec=tf.TensorSpec([2], tf.int64)),
            "wrong structure": run(element_spec=(scalar, scalar)),
            "mode": run(processing_mode="nonsense"),
            "service": run(service=""),
            "service none": run(service=None),
            "job number": run(job_name=3),
            "job empty": run(job_name=""),
            "consumers 0": run(job_name="j", consumer_index=0, num_consumers=0),
            "target": run(target_workers="nonsense"),
        }


@service_program
def servers(tf: Any, folder: pathlib.Path) -> Any:
    service = tf.data.experimental.service
    dispatcher = service.DispatchServer()
    address = dispatcher.target.split("://")[1]

    def dispatch(**options: Any) -> Any:
        def start() -> None:
            service.DispatchServer(service.DispatcherConfig(**options)).stop()

        return attempt(start)

    def work(**options: Any) -> Any:
        def start() -> None:
            given = {"dispatcher_address": address} | options
            service.WorkerServer(service.WorkerConfig(**given)).stop()

        return attempt(start)

    result = {
        "plain": dispatch(),
        "protocol": dispatch(protocol="grpc"),
        "port text": dispatch(port="5"),
        "port negative": dispatch(port=-1),
        "fault tolerant": dispatch(fault_tolerant_mode=True),
        "work_dir": dispatch(work_dir=str(folder / "a"), fault_tolerant_mode=True),
        "work_dir number": dispatch(work_dir=3, fault_tolerant_mode=True),
        "addresses number": dispatch(worker_addresses=3),
        "addresses of numbers": dispatch(worker_addresses=[3]),
        "gc": dispatch(job_gc_check_interval_ms=5, job_gc_timeout_ms=10),
        "gc text": dispatch(job_gc_timeout_ms="5"),
        "gc never": dispatch(job_gc_timeout_ms=-1),
        "timeout": dispatch(worker_timeout_ms=100),
        "snapshots": dispatch(worker_max_concurrent_snapshots=3),
        "config": attempt(lambda: service.DispatchServer(3)),
        "worker": work(),
        "worker address": work(worker_address="localhost:%port%"),
        "worker port": work(port="3"),
        "worker dispatcher none": work(dispatcher_address=None),
        "worker dispatcher number": work(dispatcher_address=3),
        "worker heartbeat": work(heartbeat_interval_ms=10),
        "worker heartbeat text": work(heartbeat_interval_ms="10"),
        "worker transfer": work(data_transfer_protocol="grpc"),
        "worker config none": attempt(lambda: service.WorkerServer(None)),
        "worker config number": attempt(lambda: service.WorkerServer(3)),
    }
    dispatcher.stop()
    return result


@service_program
def fixed_workers(tf: Any, folder: pathlib.Path) -> Any:
    """Lists of workers by host, by port, and by the name of a port."""
    service = tf.data.experimental.service
    dataset = tf.data.Dataset.range(6)
    result = {}
    for listed in (
        *(["localhost", "localhost"], ["localhost:%port%", "localhost:%port%"]),
        *(["localhost", "localhost:%port%"], ["localhost:%port_a%", "localhost:%port_b%"]),
    ):
        with cluster(tf, 2, worker_addresses=listed) as dispatcher:
            mode = service.ShardingPolicy.DATA
            remote = dataset.apply(service.distribute(mode, dispatcher.target))
            found = sorted(int(x) for x in remote)
        result[" ".join(listed)] = found
    for listed in (["other"], ["127.0.0.1", "localhost:1"]):

        def start(listed: list[str] = listed) -> None:
            with cluster(tf, worker_addresses=listed):
                pass

        result[" ".join(listed)] = attempt(start)
    return result


@service_program
def caches(tf: Any, folder: pathlib.Path) -> Any:
    service = tf.data.experimental.service
    make = service.CrossTrainerCache
    endless = tf.data.Dataset.range(3).repeat()
    with cluster(tf) as dispatcher:

        def run(dataset: Any = endless, trainer: Any = "a", **options: Any) -> Any:
            def start() -> Any:
                given = {"processing_mode": "parallel_epochs", "service": dispatcher.target}
                cache = make(trainer_id=trainer)
                more = given | {"cross_trainer_cache": cache} | options
                return dataset.apply(service.distribute(**more)).take(3)

            return elements(start)

        return {
            "two trainers": [run(job_name="two"), run(job_name="two", trainer="b")],
            "no job": run(),
            "empty trainer": run(trainer="", job_name="e"),
            "no trainer": run(trainer=None, job_name="n"),
            "consumers": run(job_name="c", consumer_index=0, num_consumers=1),
            "cached, then not": [
                run(job_name="mixed"),
                run(job_name="mixed", cross_trainer_cache=None),
            ],
            "not, then cached": [
                run(job_name="other", cross_trainer_cache=None),
                run(job_name="other"),
            ],
        }


@service_program
def coordinated_reads(tf: Any, folder: pathlib.Path) -> Any:
    service = tf.data.experimental.service
    endless = tf.data.Dataset.range(4).repeat()
    with cluster(tf) as dispatcher:

        def run(**options: Any) -> Any:
            given = {
                "processing_mode": "parallel_epochs",
                "service": dispatcher.target,
                "consumer_index": 0,
                "num_consumers": 1,
                "job_name": "job",
            }
            return elements(lambda: endless.apply(service.distribute(**(given | options))).take(2))

        return {
            "plain": run(),
            "local": run(target_workers="LOCAL", job_name="local"),
            "local in small letters": run(target_workers="local", job_name="small"),
            "any": run(target_workers="ANY", job_name="any"),
            "epoch": run(processing_mode="distributed_epoch", job_name="epoch"),
        }


@service_program
def distributed_saves(tf: Any, folder: pathlib.Path) -> Any:
    save = tf.data.experimental.distributed_save
    dataset = tf.data.Dataset.range(3)
    work_dir = str(folder / "work")
    with cluster(tf, work_dir=work_dir, fault_tolerant_mode=True) as dispatcher:
        address = dispatcher.target.split("://")[1]
        path = str(folder / "saved")

        def run(**options: Any) -> Any:
            given = {"dataset": dataset, "path": path, "data_service_address": address} | options
            return attempt(lambda: save(**given) is not None)

        return {
            "dataset": run(dataset=3),
            "dataset none": run(dataset=None),
            "path none": run(path=None),
            "path empty": run(path=""),
            "path number": run(path=3),
            "address none": run(data_service_address=None),
            "address empty": run(data_service_address=""),
            "address number": run(data_service_address=3),
            "compression number": run(compression=3),
            "plain": run(),
            "again": run(),
        }
