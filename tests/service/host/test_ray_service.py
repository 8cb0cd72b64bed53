"""`ray://`: actors of a real Ray with several nodes, which end and come back in mid-epoch."""

import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import threading

import pytest

import penstock
from penstock.data import Dataset
from penstock.data.experimental import service
from penstock.errors import (
    AlreadyExistsError,
    InvalidArgumentError,
    NotFoundError,
    OpError,
    ResourceExhaustedError,
)
from penstock.service.host import ray_actors, ray_options
from penstock.service.logic.scaling import WorkerRange
from tests.integration.clusters import until

ENVIRONMENT = {
    # Ray listens on the loopback device, as on other systems than Linux.
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    # The clusters of the tests have a secret of their own, never that of the user.
    "RAY_AUTH_MODE": "token",
    "RAY_AUTH_TOKEN": secrets.token_hex(32),
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}
STORE = 80 << 20


class Nodes:
    """A Ray on this machine, whose nodes have one CPU each."""

    def __init__(self, folder):
        from ray.cluster_utils import Cluster

        self.cluster = Cluster(
            initialize_head=True,
            connect=True,
            head_node_args={
                "num_cpus": 1,
                "object_store_memory": STORE,
                "include_dashboard": False,
                "temp_dir": folder,
            },
        )

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
        made = Nodes(folder)
        yield made
        made.close()
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

    return [found["name"] for found in ray.util.list_named_actors(all_namespaces=True)]


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
    with iter(read("ray://auto?workers=2&linger=4")) as iterator:
        elements += [int(next(iterator)) for _ in range(100)]
        [name] = services()
        ray.kill(ray.get_actor(name, namespace="penstock"), no_restart=False)
        elements += [int(next(iterator)) for _ in range(300)]
        nodes.cluster.remove_node(second)
        elements += [int(next(iterator)) for _ in range(100)]
        ray.kill(ray.get_actor(name, namespace="penstock"))
        nodes.add()
        elements += [int(x) for x in iterator]
    assert elements == list(range(1000))
    until(lambda: not services())


def read_shared(url, path):
    """Reads its share of a named job, and notes the elements in a file as they come."""
    with open(path, "w") as file:
        for x in read(url, job_name="training"):
            print(int(x), file=file, flush=True)


def test_programs_on_several_nodes_share_a_job_of_which_the_dispatcher_dies(nodes, tmp_path):
    import ray

    url = "ray://?workers=1&linger=4"
    task = ray.remote(num_cpus=0, scheduling_strategy="SPREAD")(read_shared)
    paths = [tmp_path / "one", tmp_path / "two"]
    readers = [task.remote(url, str(path)) for path in paths]
    until(lambda: all(path.exists() and path.stat().st_size for path in paths))
    [name] = services()
    ray.kill(ray.get_actor(name, namespace="penstock"), no_restart=False)
    ray.get(readers)
    shares = [[int(line) for line in path.read_text().split()] for path in paths]
    assert all(share == sorted(share) for share in shares)
    assert sorted(shares[0] + shares[1]) == list(range(1000))


def test_a_launched_service_is_found_by_its_name_until_it_is_closed(nodes, tmp_path):
    arguments = {"workers": "1..2", "cpus": 0.5, "work_dir": str(tmp_path / "journal")}
    with penstock.launch.ray("features", **arguments) as launched:
        assert launched.url == "ray://features"
        assert [int(x) for x in read(launched.url, 20)] == list(range(20))
        name = service.register_dataset(launched.url, Dataset.range(3))
        again = service.from_dataset_id("distributed_epoch", launched.url, name)
        assert [int(x) for x in again] == [0, 1, 2]
        assert service.status(launched.url)["workers"]
        assert penstock.launch.ray("features", **arguments).url == launched.url
        with pytest.raises(AlreadyExistsError, match="'features' runs with other options"):
            penstock.launch.ray("features", workers=3)
    assert "features" not in services()
    with pytest.raises(NotFoundError, match="ray://features: Ray has no such service"):
        next(iter(read("ray://features")))


def test_a_cluster_without_room_is_an_error_that_names_the_resource(nodes):
    reason = "waited 1 s, and a worker needs 8 CPU, and the largest node of Ray has 1"
    made = read("ray://?workers=1&cpus=8&wait=1")
    with iter(made) as iterator, pytest.raises(ResourceExhaustedError, match=reason):
        next(iterator)
    until(lambda: not services())


def test_a_function_of_a_module_that_nodes_lack_is_an_error(nodes, tmp_path, monkeypatch):
    (tmp_path / "only_here.py").write_text("def double(x):\n    return 2 * x\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    import only_here

    made = Dataset.range(3).map(only_here.double)
    made = made.apply(service.distribute("distributed_epoch", "ray://?workers=1&linger=4"))
    with iter(made) as iterator, pytest.raises(OpError, match="has no module 'only_here'"):
        next(iterator)


PROGRAM = """
import sys
sys.path[:0] = {path!r}
import ray
from tests.service.host.test_ray_service import read
{begin}
iterator = iter(read("ray://auto?workers=1"))
try:
    print(next(iterator), flush=True)
except Exception as error:
    print(type(error).__name__, error, flush=True)
print(ray.is_initialized())
"""


def run(begin="", **environment):
    program = PROGRAM.format(path=sys.path, begin=begin)
    return subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, **ENVIRONMENT, **environment},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    ).stdout


def test_services_of_a_program_end_with_it(nodes):
    assert run(RAY_ADDRESS=nodes.cluster.address) == "0\nTrue\n"
    until(lambda: not services())


def test_another_version_of_ray_is_an_error(nodes):
    printed = run('ray.__version__ = "2.0.0"', RAY_ADDRESS=nodes.cluster.address)
    assert printed.startswith(
        "FailedPreconditionError ray://auto: this program cannot use this Ray"
    )
    assert "Ray: 2.0.0" in printed
    assert printed.endswith("False\n")


def test_without_a_cluster_there_is_an_error_and_no_ray():
    printed = run(RAY_ADDRESS="127.0.0.1:1")  # Nothing listens there.
    assert "FailedPreconditionError ray://auto: no Ray can be reached" in printed
    assert "use ray://local for a Ray that ends with this program" in printed
    assert printed.endswith("False\n")


@pytest.mark.parametrize(
    ("rest", "reason"),
    [
        ("auto?workers=0", "workers must be a number, like 4"),
        ("?workers=4..2", "workers must be a number, like 4"),
        ("?cpus=-1", "cpus must be a number, at least 0, got '-1'"),
        ("?wait=soon", "wait must be a number, at least 0, got 'soon'"),
        ("?gpus=1", "the keys must be different ones of workers, cpus, wait, linger, work_dir"),
        ("?cpus=1&cpus=2", "the keys must be different ones"),
        ("auto?workers", "'workers' must be key=value pairs"),
        ("features?workers=3", "the service 'features' was launched with its options"),
    ],
)
def test_wrong_urls_are_errors(rest, reason):
    with pytest.raises(InvalidArgumentError, match=f"ray://{rest}: {reason}".replace("?", r"\?")):
        ray_options.parse_rest(rest)


def test_options_of_a_url():
    options = ray_options.parse_rest("?workers=4..64&cpus=0.5&wait=600&linger=60&work_dir=/shared")
    assert options == ray_options.RayOptions(
        name="auto",
        workers=WorkerRange(4, 64),
        cpus=0.5,
        wait=600,
        linger=60,
        work_dir="/shared",
    )
    assert ray_options.parse_rest("auto") == ray_options.parse_rest("")
    assert ray_options.parse_rest("local").name == "local"


@pytest.mark.parametrize("name", ["", "auto", "local", "a?b", "a/b", "a:b", 3])
def test_names_of_launched_services_are_words(name):
    with pytest.raises(InvalidArgumentError, match="launch.ray: name must be a word"):
        penstock.launch.ray(name)


@pytest.mark.parametrize(
    ("cpus", "free", "reason"),
    [
        (1, 0.5, "no room for a worker, which needs 1 CPU: 0.5 of 6 CPU on 2 nodes are free"),
        (8, 6.0, "a worker needs 8 CPU, and the largest node of Ray has 4"),
        (1, 2.0, "the workers have not started yet"),
    ],
)
def test_a_shortage_names_the_resource(cpus, free, reason):
    nodes = [{"CPU": 4.0, "memory": 1e9}, {"CPU": 2.0}]
    assert reason in ray_actors.describe_shortage(cpus, nodes, {"CPU": free})
