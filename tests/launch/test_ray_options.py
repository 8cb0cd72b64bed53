"""The options of services on Ray, and why Ray has no room for a worker."""

import os

import pytest

import penstock
from penstock.data import Dataset
from penstock.data.experimental import service
from penstock.errors import InvalidArgumentError
from penstock.launch import ray_actors, ray_options
from penstock.launch.hosted_service import WorkerRange
from penstock.service.protocol import timing


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
        Dataset.range(3).apply(service.distribute("distributed_epoch", f"ray://{rest}"))


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
        (1, [0.5], "no room for a worker, which needs 1 CPU: 0.5 of 6 CPU on 2 nodes are free"),
        (1, [0.5, 0.75], "1.25 of 6 CPU on 2 nodes are free, at most 0.75 on one node"),
        (1, [], "no room for a worker, which needs 1 CPU: 0 of 6 CPU on 2 nodes are free"),
        (8, [4.0, 2.0], "a worker needs 8 CPU, and the largest node of Ray has 4"),
        (1, [0.0, 2.0], "the workers have not started yet"),
    ],
)
def test_a_shortage_names_the_resource(cpus, free, reason):
    nodes = [{"CPU": 4.0, "memory": 1e9}, {"CPU": 2.0}]
    left = [{"CPU": each} for each in free]
    assert reason in ray_actors.describe_shortage(cpus, nodes, left)


def test_journals_that_killed_actors_have_left_are_removed(tmp_path):
    long_ago = timing.RAY_ORPHAN + 60
    for name in ("penstock-ray-old", "penstock-ray-held", "penstock-ray-new", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "hold-1").touch()
        for path in (tmp_path / name / "hold-1", tmp_path / name):
            now = path.stat().st_mtime
            os.utime(path, (now, now - long_ago))
    os.utime(tmp_path / "penstock-ray-held" / "hold-1")  # As its dispatcher does all the time.
    (tmp_path / "penstock-ray-new" / "journal.sqlite").touch()
    ray_actors.remove_orphans(str(tmp_path))
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {"penstock-ray-held", "penstock-ray-new", "other"}
