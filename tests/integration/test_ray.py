"""`ray://`: actors of a real Ray with several nodes, which end and come back in mid-epoch."""

import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import threading

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
from tests.integration.clusters import until

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
from tests.integration.test_ray import read
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
