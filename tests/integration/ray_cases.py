"""`ray://`: actors of a real Ray with several nodes, which end and restart within an epoch."""

import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

import penstock
from penstock.data import Dataset
from penstock.data.experimental import service
from penstock.errors import (
    AlreadyExistsError,
    InvalidArgumentError,
    InvalidTypeError,
    NotFoundError,
    OpError,
    ResourceExhaustedError,
)
from penstock.launch import ray_actors
from tests.integration.clusters import Cluster, until

# Ray uses its own deprecated names, and forks where another test may have started JAX.
pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", r"ignore:os\.fork\(\) was called:RuntimeWarning"
)

ENVIRONMENT = {
    # Ray listens on the loopback device, as on other systems than Linux.
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    # The clusters of the tests have a secret of their own, never that of the user.
    "RAY_AUTH_MODE": "token",
    "RAY_AUTH_TOKEN": secrets.token_hex(32),
    "RAY_USAGE_STATS_ENABLED": "0",
    # No processes before they are needed.
    "RAY_prestart_worker_first_driver": "0",
    # For machines that are busy. Ray's own choice gives its workers a thirtieth of a busy core.
    "RAY_worker_niceness": "0",
    "RAY_gcs_rpc_server_connect_timeout_s": "60",
    "RAY_gcs_server_request_timeout_seconds": "600",
    "RAY_agent_register_timeout_ms": "600000",
}
SHARED = "ray://?workers=1&cpus=0.5&wait=600&linger=600"
"""A service that several tests use; it ends with the cluster."""
STORE = 80 << 20


class Nodes:
    """A Ray on this machine, whose nodes have one CPU each."""

    def __init__(self, folder):
        self.folder = folder
        self.cluster = self._start()

    def _start(self, attempts=3):
        import ray
        from ray.cluster_utils import Cluster as RayCluster

        arguments = {"num_cpus": 1, "object_store_memory": STORE, "include_dashboard": False}
        try:
            return RayCluster(initialize_head=True, connect=True, head_node_args=arguments)
        except Exception as error:
            # Ray gives its processes 30 s to start, which a busy machine may need.
            if "timed out during startup" not in str(error) or attempts == 1:
                raise
            ray.shutdown()
            for process in processes_of(self.folder):
                with suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
            return self._start(attempts - 1)

    def add(self):
        return self.cluster.add_node(num_cpus=1, object_store_memory=STORE)

    def close(self):
        import ray

        ray.shutdown()
        self.cluster.shutdown()


@pytest.fixture(scope="module")
def nodes():
    with pytest.MonkeyPatch.context() as patch:
        for name, value in ENVIRONMENT.items():
            patch.setenv(name, value)
        folder = tempfile.mkdtemp(prefix="ray-", dir="/tmp")  # Paths of sockets must be short.
        # Ray keeps everything there, also the file that names the current cluster of the user.
        patch.setenv("RAY_TMPDIR", folder)
        patch.setenv("TMPDIR", folder)  # For actors, which keep journals there.
        try:
            made = Nodes(folder)
            yield made
            made.close()
        finally:
            shutil.rmtree(folder)
    until(lambda: not processes_of(folder))


def processes_of(folder):
    """The processes whose command line names the folder of a cluster."""
    found = []
    for process in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{process}/cmdline") as file:
                if folder in file.read():
                    found.append(int(process))
        except (FileNotFoundError, ProcessLookupError):
            pass
    return found


def services():
    import ray

    found = ray.util.list_named_actors(all_namespaces=True)
    return [actor["name"] for actor in found if actor["namespace"] == "penstock"]


def slow(x):
    threading.Event().wait(0.002)
    return x


def read(url, count=1000, **arguments):
    return (
        Dataset.range(count)
        .map(slow)
        .apply(service.distribute("distributed_epoch", url, **arguments))
    )


def test_actors_end_and_nodes_leave_and_join_in_mid_epoch(nodes):
    import ray

    second = nodes.add()
    elements = []
    with iter(read("ray://auto?workers=2&wait=600&linger=4")) as iterator:
        elements += [int(next(iterator)) for _ in range(100)]
        [name] = [name for name in services() if "linger=4" in name]
        actor = ray.get_actor(name, namespace="penstock")
        token, _ = ray.get(actor.connect.remote("test"))
        ray.kill(actor, no_restart=False)
        elements += [int(next(iterator)) for _ in range(300)]
        nodes.cluster.remove_node(second)
        elements += [int(next(iterator)) for _ in range(100)]
        ray.kill(ray.get_actor(name, namespace="penstock"))
        nodes.add()
        elements += [int(x) for x in iterator]
    assert elements == list(range(1000))
    until(lambda: name not in services())
    logs = [path for path in Path(nodes.folder).rglob("*") if path.is_file()]
    assert any(b"no program has read for 4 s; ends" in path.read_bytes() for path in logs)
    assert not any(token.encode() in path.read_bytes() for path in logs)


def read_shared(path):
    """Reads its share of a named job, and writes each element into a file at once."""
    with open(path, "w") as file:
        for x in read(SHARED, job_name="shared"):
            print(int(x), file=file, flush=True)


def test_programs_on_several_nodes_share_a_job_of_which_the_dispatcher_dies(nodes, tmp_path):
    import ray

    task = ray.remote(num_cpus=0, scheduling_strategy="SPREAD")(read_shared)
    paths = [tmp_path / "one", tmp_path / "two"]
    readers = [task.remote(str(path)) for path in paths]
    until(lambda: all(path.exists() and path.stat().st_size for path in paths))
    [name] = [name for name in services() if "linger=600" in name]
    ray.kill(ray.get_actor(name, namespace="penstock"), no_restart=False)
    ray.get(readers)
    shares = [[int(line) for line in path.read_text().split()] for path in paths]
    assert all(share == sorted(share) for share in shares)
    assert sorted(shares[0] + shares[1]) == list(range(1000))


def train(folder):
    """The training loop of one worker of Ray Train, which notes its node and its elements."""
    import ray.train
    import torch
    from ray.train.torch import prepare_model

    made = Dataset.range(200).map(np.float32).batch(10)
    made = made.apply(service.distribute("distributed_epoch", SHARED, job_name="training"))
    model = prepare_model(torch.nn.Linear(1, 1))
    seen = []
    with model.join():  # One of them may have more batches.
        for (batch,) in made.map(lambda batch: (batch[:, None],)).as_torch():
            seen += batch.flatten().tolist()
            model(batch).sum().backward()
    node = ray.get_runtime_context().get_node_id()
    rank = ray.train.get_context().get_world_rank()
    with open(os.path.join(folder, f"rank{rank}"), "w") as file:
        json.dump([node, seen], file)


def test_workers_of_ray_train_share_a_job(nodes, tmp_path):
    import ray.train
    from ray.train.torch import TorchTrainer

    workers = ray.train.ScalingConfig(
        num_workers=2, resources_per_worker={"CPU": 0.5}, placement_strategy="STRICT_SPREAD"
    )
    TorchTrainer(
        train,
        train_loop_config=str(tmp_path),
        scaling_config=workers,
        run_config=ray.train.RunConfig(storage_path=str(tmp_path / "results")),
    ).fit()
    found = [json.loads((tmp_path / f"rank{rank}").read_text()) for rank in range(2)]
    assert len({node for node, _ in found}) == 2
    assert sorted(found[0][1] + found[1][1]) == list(range(200))


def node_of_dispatcher(name):
    """The id of the node on which the actor of a service runs, once it runs."""
    import ray

    def find(actor):
        return ray.get_runtime_context().get_node_id()

    while True:
        actor = ray.get_actor(name, namespace="penstock")
        try:
            return ray.get(actor.__ray_call__.remote(find), timeout=60)
        except ray.exceptions.RayActorError:
            pass  # It is being restarted.


def read_while_the_node_of_the_dispatcher_ends(nodes, url):
    """The actor may run on any node, because all nodes see its journal."""
    import ray

    name = url.removeprefix("ray://")
    head = nodes.cluster.head_node.node_id
    for _ in range(20):
        if (node := node_of_dispatcher(name)) != head:
            break
        # Ray starts an actor that needs no CPU on any node.
        ray.kill(ray.get_actor(name, namespace="penstock"), no_restart=False)
    assert node != head
    with iter(read(url, job_name="node")) as iterator:
        elements = [int(next(iterator)) for _ in range(100)]
        [gone] = [one for one in nodes.cluster.worker_nodes if one.node_id == node]
        nodes.cluster.remove_node(gone)
        elements += [int(x) for x in iterator]
    assert node_of_dispatcher(name) != node
    nodes.add()
    return elements


def test_a_launched_service_is_found_by_its_name_until_it_is_closed(nodes, tmp_path):
    arguments = {"workers": "1..2", "cpus": 0.5, "work_dir": str(tmp_path / "journal"), "wait": 600}
    with penstock.launch.ray("features", **arguments) as launched:
        assert launched.url == "ray://features"
        elements = read_while_the_node_of_the_dispatcher_ends(nodes, launched.url)
        assert elements == list(range(1000))
        with iter(read(launched.url, 10**6)) as iterator:
            while (
                len(service.status(launched.url)["workers"]) < 2
            ):  # More, as readers can use them.
                next(iterator)
        name = service.register_dataset(launched.url, Dataset.range(3))
        again = service.from_dataset_id("distributed_epoch", launched.url, name)
        assert [int(x) for x in again] == [0, 1, 2]
        assert service.status(launched.url)["workers"]
        assert penstock.launch.ray("features", **arguments).url == launched.url
        with pytest.raises(AlreadyExistsError, match="'features' runs with other options"):
            penstock.launch.ray("features", workers=3, wait=600)
    assert "features" not in services()
    with penstock.launch.ray("features", workers=1, cpus=0.5, wait=600) as launched:
        until(lambda: service.status(launched.url)["workers"])  # It has another token.
    with pytest.raises(NotFoundError, match="ray://features: Ray has no such service"):
        next(iter(read("ray://features")))


def test_a_cluster_without_room_is_an_error_that_names_the_resource(nodes):
    reason = "waited 1 s, and a worker needs 8 CPU, and the largest node of Ray has 1"
    made = read("ray://?workers=1&cpus=8&wait=1")
    with iter(made) as iterator, pytest.raises(ResourceExhaustedError, match=reason):
        next(iterator)
    until(lambda: not [name for name in services() if "cpus=8" in name])


def test_a_cluster_whose_cpus_are_taken_is_an_error_that_names_the_resource(nodes):
    import ray

    total = ray.cluster_resources()["CPU"]
    bundles = [{"CPU": 0.5}] * int(total)
    taken = ray.util.placement_group(bundles, strategy="STRICT_SPREAD")
    assert taken.wait(60)
    reason = (
        r"waited 1 s, and Ray has no room for a worker, which needs 1 CPU: [0-9.]+ of "
        rf"{total:g} CPU on {len(bundles)} nodes are free(, at most 0.5 on one node)?"
        r"; ask for fewer CPU"
    )
    before = set(services())
    made = read("ray://?workers=1&wait=1")
    with iter(made) as iterator, pytest.raises(ResourceExhaustedError, match=reason):
        next(iterator)
    until(lambda: set(services()) <= before)
    ray.util.remove_placement_group(taken)


def test_a_worker_that_leaves_finishes_its_requests(nodes):
    with Cluster(workers=0) as local:
        group = ray_actors.RayWorkers(2, cpus=0.4)
        group.begin(service.WorkerConfig(local.address), pytest.fail)
        count = lambda: len(service.status(local.target)["workers"])  # noqa: E731
        with iter(read(local.target)) as iterator:
            elements = [int(next(iterator))]
            until(lambda: count() == 2)
            elements += [int(next(iterator)) for _ in range(99)]
            group.resize(1)
            assert len(group) == 1
            while count() > 1:
                elements.append(int(next(iterator)))
            elements += [int(x) for x in iterator]
        group.close()
    assert elements == list(range(1000))


def test_metrics_of_the_dispatcher_are_metrics_of_ray(nodes, monkeypatch):
    """Ray itself exports them only if all of `ray[default]` is installed."""
    from ray.util import metrics

    gauges, counts = {}, Counter()

    def set_gauge(gauge, value, tags=None):
        gauges[gauge.info["name"], *sorted(tags.values())] = value
        set_value(gauge, value, tags)

    def count(counter, value=1.0, tags=None):
        counts[counter.info["name"], *sorted(tags.values())] += value
        increase(counter, value, tags)

    set_value, increase = metrics.Gauge.set, metrics.Counter.inc
    monkeypatch.setattr(metrics.Gauge, "set", set_gauge)
    monkeypatch.setattr(metrics.Counter, "inc", count)
    published = ray_actors.RayMetrics("features")
    with Cluster(1) as local:
        measure = local.dispatcher._hosted.measure
        for _ in range(2):
            assert len(list(Dataset.range(20).apply(local.distribute()))) == 20
            until(lambda: measure()["penstock_readers"] == 0)
            published.publish(measure())
        assert gauges["penstock_workers", "features", "here"] == 1
        assert counts["penstock_iterations_begun", "features"] == 2
        assert counts["penstock_readers_joined", "features"] == 2


def test_a_function_of_a_module_that_nodes_lack_is_an_error(nodes, tmp_path, monkeypatch):
    (tmp_path / "only_here.py").write_text("def double(x):\n    return 2 * x\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    import only_here

    made = Dataset.range(3).map(only_here.double)
    made = made.apply(service.distribute("distributed_epoch", SHARED))
    with iter(made) as iterator, pytest.raises(OpError, match="has no module 'only_here'"):
        next(iterator)


PROGRAM = """
import os, sys
sys.path[:0] = {path!r}
import ray
from tests.integration.ray_cases import read

def begin():
    try:
        with iter(read("ray://auto?workers=1&cpus=0.4&wait=600&linger=600")) as iterator:
            return int(next(iterator))
    except Exception as error:
        assert not ray.is_initialized()
        return type(error).__name__ + str(error)

if {shuts_down}:
    os.environ["RAY_ADDRESS"] = {address!r}
    print([begin()])
    ray.shutdown()
    sys.exit()
os.environ["RAY_ADDRESS"] = "127.0.0.1:1"
print([begin()])
os.environ["RAY_ADDRESS"] = {address!r}
version, ray.__version__ = ray.__version__, "2.0.0"
print([begin()])
ray.__version__ = version
print([begin()])
"""


def run_program(nodes, shuts_down):
    program = PROGRAM.format(path=sys.path, address=nodes.cluster.address, shuts_down=shuts_down)
    done = subprocess.run(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, check=True
    )
    return done.stdout.splitlines()


def test_a_program_needs_a_ray_of_its_version_and_leaves_nothing_behind(nodes):
    before = services()
    unreachable, version, read = run_program(nodes, shuts_down=False)
    assert "FailedPreconditionErrorray://auto: no Ray can be reached (127.0.0.1:1" in unreachable
    assert "use ray://local for a Ray that ends with this program" in unreachable
    assert "FailedPreconditionErrorray://auto: this program cannot use this Ray" in version
    assert "Ray: 2.0.0" in version
    assert read == "[0]"
    # The actors would stay for 600 s, if the end of the program did not end them.
    until(lambda: set(services()) <= set(before))
    assert run_program(nodes, shuts_down=True) == ["[0]"]
    until(lambda: set(services()) <= set(before))


OWN_RAY = """
import functools, sys
sys.path[:0] = {path!r}
import ray
from ray._private import services
from tests.integration.ray_cases import read

# As if no other Ray ran on this machine.
services._cached_find_gcs_addresses = functools.lru_cache(set)

def begin(url):
    try:
        return [int(x) for x in read(url, 5)]
    except Exception as error:
        assert not ray.is_initialized()
        return type(error).__name__ + str(error)

print(begin("ray://auto"))
print(begin("ray://local?workers=1&cpus=0.4&wait=600"))
"""


def test_a_ray_is_started_only_if_it_is_asked_for_and_ends_with_the_program(nodes, monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp") as folder:
        monkeypatch.setenv("RAY_TMPDIR", folder)  # Where Ray looks for a cluster that runs.
        done = subprocess.run(
            [sys.executable, "-c", OWN_RAY.format(path=sys.path)],
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        until(lambda: not processes_of(folder))
    lines = done.stdout.splitlines()
    assert lines[0].startswith(
        "FailedPreconditionErrorray://auto: no Ray can be reached (Could not"
    )
    assert "[0, 1, 2, 3, 4]" in lines


def test_rows_of_ray_data(nodes):
    import ray.data

    def make(batch):
        number = batch["id"]
        text = np.array([f"n{n}" for n in number])
        return {
            "id": number,
            "tensor": np.ones((len(number), 2, 3)) * number[:, None, None],
            "text": text,
        }

    lazy = ray.data.range(10, override_num_blocks=2).map_batches(make)
    streamed = Dataset.from_ray(lazy)
    rows = list(streamed.as_numpy_iterator())
    assert [row["text"] for row in rows] == [b"n%d" % n for n in range(10)]
    assert rows[7]["tensor"].tolist() == np.full((2, 3), 7.0).tolist()
    iterator = iter(streamed)
    state = [next(iterator) for _ in range(6)] and iterator.state_dict()
    iterator = iter(streamed)
    iterator.load_state_dict(state)
    assert [int(row["id"]) for row in iterator] == [6, 7, 8, 9]
    elsewhere = streamed.apply(service.distribute("distributed_epoch", "local://1"))
    with pytest.raises(OpError, match="Dataset.from_ray: this process is not connected to Ray"):
        list(elsewhere)
    table = Dataset.from_ray(lazy.materialize(), columns=["id"]).shuffle(10, seed=1)
    assert sorted(int(row["id"]) for row in table) == list(range(10))
    assert table.cardinality() == 10
    with pytest.raises(InvalidArgumentError, match="Dataset.from_ray: the dataset is empty"):
        Dataset.from_ray(ray.data.range(0))
    with pytest.raises(InvalidTypeError, match="Dataset.from_ray: needs a ray.data.Dataset"):
        Dataset.from_ray([1, 2])


def test_datasets_for_ray_data(nodes):
    made = Dataset.range(10).map(lambda x: {"x": x, "text": b"n%d" % x, "many": np.arange(x)})
    blocks = made.to_ray(num_blocks=2)
    blocks.context.execution_options.preserve_order = True
    rows = blocks.take_all()
    assert [row["x"] for row in rows] == list(range(10))
    assert [row["text"] for row in rows] == [b"n%d" % n for n in range(10)]
    assert [list(row["many"]) for row in rows] == [list(range(n)) for n in range(10)]
    odd = Dataset.range(10).filter(lambda x: x % 2 == 1).to_ray(num_blocks=1)
    assert sorted(row["item"] for row in odd.take_all()) == [1, 3, 5, 7, 9]
    with pytest.raises(InvalidArgumentError, match="Dataset.to_ray: the dataset has no end"):
        made.repeat().to_ray()
    with pytest.raises(InvalidArgumentError, match="Dataset.to_ray: elements must be dicts"):
        Dataset.range(3).map(lambda x: (x, x)).to_ray()
