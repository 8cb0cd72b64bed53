"""`penstock deploy`: what it prints is valid, and really starts a service."""

import contextlib
import os
import random
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from socket import socket
from typing import Any

import kubernetes_validate
import pytest
import yaml

from penstock.cli import main
from penstock.data import Dataset
from penstock.data.experimental.service import distribute
from penstock.service.protocol import timing
from tests.integration.clusters import until

READER = """
import os
from penstock.data import Dataset
from penstock.data.experimental.service import distribute

read = Dataset.range(100).apply(distribute("distributed_epoch", os.environ["PENSTOCK_SERVICE"]))
assert list(map(int, read)) == list(range(100))
"""

TRAINER = f"""
import os
from penstock.data.experimental.service import status
from penstock.errors import UnavailableError


def count_workers():
    try:
        return len(status(os.environ["PENSTOCK_SERVICE"])["workers"])
    except UnavailableError:
        return 0  # The dispatcher has not started yet.


while count_workers() < 2:
    pass
{READER}
"""

SRUN = """#!/bin/bash
# Starts the tasks of a job on this machine, and passes SIGTERM on to them.
echo "$OMP_NUM_THREADS threads for each task"
for task in $(seq "${SLURM_NTASKS:-2}"); do
    SLURM_PROCID=$task "$@" &
    tasks="${tasks-} $!"
done
trap 'kill $tasks' TERM
wait; wait
"""


def render_output(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["deploy", *arguments]) == 0
    return capsys.readouterr().out


def manifests(text: str) -> dict[str, Any]:
    found = list(yaml.safe_load_all(text))
    return {f"{each['kind']}/{each['metadata']['name']}": each for each in found}


def container_of(manifest: dict[str, Any]) -> dict[str, Any]:
    (container,) = manifest["spec"]["template"]["spec"]["containers"]
    return dict(container)


def free_port(ports: range = range(1)) -> int:
    """A port that no process has; of some ports, if they are given."""
    for port in random.sample(ports, min(len(ports), 100)):
        with contextlib.suppress(OSError), socket() as probe:
            probe.bind(("", port))
            return int(probe.getsockname()[1])
    raise AssertionError(f"no port of {ports} is free")


@contextlib.contextmanager
def running(command: list[str], folder: Path, **environment: str) -> Iterator[Any]:
    """A program that finds the commands `penstock` and `python3` of this Python, as in an active
    environment; it is killed if it is still there at the end."""
    for name, start in {
        "penstock": f"{sys.executable} -m penstock",
        "python3": sys.executable,
    }.items():
        script = folder / name
        if not script.exists():  # A program that runs cannot be written again.
            script.write_text(f'#!/bin/sh\nexec {start} "$@"\n')
            script.chmod(0o755)
    paths = {
        "PATH": f"{folder}:{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
    }
    process = subprocess.Popen(
        command, env={**os.environ, **paths, **environment}, start_new_session=True
    )
    with process:
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["--workers", "2..9", "--worker-cpus", "500m", "--worker-memory", "1.5Gi"],
        ["--name", "data", "--namespace", "team-a", "--storage-class", "fast", "--storage", "1Ti"],
    ],
)
def test_manifests_are_valid(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    image = "registry.example.org:5000/train@sha256:00ff"
    found = manifests(render_output(capsys, "kubernetes", "--image", image, *arguments))
    for each in found.values():
        kubernetes_validate.validate(each, kubernetes_validate.latest_version(), strict=True)
    assert any(name.startswith("Horizontal") for name in found) == ("2..9" in arguments)
    for each in found.values():
        if each["kind"] in ("Deployment", "StatefulSet"):
            template = each["spec"]["template"]
            assert each["spec"]["selector"]["matchLabels"] == template["metadata"]["labels"]
            services = [s["spec"]["selector"] for s in found.values() if s["kind"] == "Service"]
            assert template["metadata"]["labels"] in services
            (container,) = template["spec"]["containers"]
            assert container["image"] == image
            probe = container["readinessProbe"]["exec"]["command"]
            assert probe[:2] == ["python3", "-c"]
            compile(probe[2], "probe", "exec")


def test_manifests_have_what_a_cluster_needs(capsys: pytest.CaptureFixture[str]) -> None:
    found = manifests(render_output(capsys, "kubernetes", "--image", "train", "--workers", "2..9"))
    stateful = found["StatefulSet/penstock-dispatcher"]["spec"]
    assert [each["metadata"]["name"] for each in stateful["volumeClaimTemplates"]] == ["journal"]
    for name in ("StatefulSet/penstock-dispatcher", "Deployment/penstock-workers"):
        pod = found[name]["spec"]["template"]["spec"]
        (container,) = pod["containers"]
        assert {"startupProbe", "readinessProbe", "livenessProbe"} <= container.keys()
        secrets = [volume.get("secret", {}).get("secretName") for volume in pod["volumes"]]
        assert "penstock-certificates" in secrets
        assert "--certificates=/etc/penstock/certificates" in " ".join(container["command"])
    assert (
        found["Deployment/penstock-workers"]["spec"]["minReadySeconds"]
        > 2 * timing.LONGEST_CLIENT_HEARTBEAT
    )
    workers = found["Deployment/penstock-workers"]["spec"]["template"]
    variables = {each["name"]: each for each in workers["spec"]["containers"][0]["env"]}
    threads = variables["OMP_NUM_THREADS"]["valueFrom"]["resourceFieldRef"]["resource"]
    assert threads == "requests.cpu"
    drain = int(re.findall(r"--drain-timeout=(\d+)", str(workers))[0])
    assert workers["spec"]["terminationGracePeriodSeconds"] > drain
    labels = workers["metadata"]["labels"]
    budget = found["PodDisruptionBudget/penstock-workers"]["spec"]
    assert budget["selector"]["matchLabels"].items() <= labels.items()
    policy = found["NetworkPolicy/penstock"]["spec"]
    assert policy["policyTypes"] == ["Ingress"]
    ports = {port["port"] for rule in policy["ingress"] for port in rule["ports"]}
    assert {5050, 5051} <= ports
    scaler = found["HorizontalPodAutoscaler/penstock-workers"]["spec"]
    assert scaler["metrics"][0]["external"]["metric"]["name"] == "penstock_wanted_workers"
    assert (scaler["minReplicas"], scaler["maxReplicas"]) == (2, 9)


def test_a_worker_has_its_name_also_while_its_pod_is_not_ready(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Readers ask a worker as soon as it has joined, and while it leaves."""
    found = manifests(render_output(capsys, "kubernetes", "--image", "train"))
    assert found["Service/penstock-workers"]["spec"]["publishNotReadyAddresses"] is True


@pytest.mark.parametrize(("workers", "replicas"), [("3", 3), ("3..3", 3), ("3..9", None)])
def test_applying_manifests_again_does_not_change_what_an_autoscaler_chose(
    capsys: pytest.CaptureFixture[str], workers: str, replicas: int | None
) -> None:
    found = manifests(render_output(capsys, "kubernetes", "--image", "train", "--workers", workers))
    assert found["Deployment/penstock-workers"]["spec"].get("replicas") == replicas


def test_words_that_yaml_would_read_as_other_values_stay_words(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["--image", "12", "--name", "on", "--namespace", "null", "--storage-class", "1.5"]
    found = manifests(render_output(capsys, "kubernetes", *words))
    for each in found.values():
        kubernetes_validate.validate(each, kubernetes_validate.latest_version(), strict=True)
        assert each["metadata"]["namespace"] == "null"
    assert container_of(found["Deployment/on-workers"])["image"] == "12"


def test_the_commands_of_the_manifests_start_a_service(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Makes every name of the cluster resolve to localhost."""
    text = render_output(capsys, "kubernetes", "--image", "train", "--drain-timeout", "5")
    certificates = str(tmp_path / "certs")
    assert main(["certs", certificates]) == 0
    control, data = free_port(), free_port()
    for name, here in {
        "penstock-dispatcher.default.svc.cluster.local": "localhost",
        '"`echo "$POD_IP" | tr . -`.penstock-workers.default.svc.cluster.local:': '"$POD_IP:',
        "/var/lib/penstock": str(tmp_path),
        "/etc/penstock/certificates": certificates,
        "5050": str(control),
        "5051": str(data),
        "python3": sys.executable,
    }.items():
        assert name in text
        text = text.replace(name, here)
    # Here, both have one address, so each has its own port for metrics and probes.
    containers = [
        container_of(manifests(text.replace("9100", str(free_port())))[name])
        for name in ("StatefulSet/penstock-dispatcher", "Deployment/penstock-workers")
    ]
    commands = [container["command"] for container in containers]
    probes = [
        container[probe]["exec"]["command"]
        for container in containers
        for probe in ("startupProbe", "livenessProbe", "readinessProbe")
    ]
    monkeypatch.setenv("PENSTOCK_CERTIFICATES", certificates)
    reading = distribute("distributed_epoch", f"grpc://localhost:{control}")
    with (
        running(commands[0], tmp_path) as dispatcher,
        running(commands[1], tmp_path, POD_IP="127.0.0.1") as worker,
    ):
        assert list(map(int, Dataset.range(100).apply(reading))) == list(range(100))
        for probe in probes:
            subprocess.run(probe, check=True)
        for process in (worker, dispatcher):
            process.terminate()
            assert process.wait() == 0
    for probe in probes:
        ended = subprocess.run(probe, stderr=subprocess.PIPE, text=True)
        assert "Connection refused" in ended.stderr


@pytest.mark.parametrize("trains", [True, False])
def test_a_batch_script_starts_a_service_and_ends_it(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    trains: bool,
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS")
    folder = tmp_path / "a folder"
    training = ["--", sys.executable, "-c", TRAINER] if trains else []
    options = ["--folder", str(folder), "--partition", "cpu", "--worker-cpus", "3"]
    text = render_output(capsys, "slurm", *options, *training)
    assert re.search("^#SBATCH --partition=cpu$", text, re.M)
    script = tmp_path / "job.sbatch"
    script.write_text(text)
    (tmp_path / "srun").write_text(SRUN)
    (tmp_path / "srun").chmod(0o755)
    # The number of the job, from which the script computes its port.
    number = str(free_port(range(20000, 40000)) - 20000)
    with running(["bash", str(script)], tmp_path, SLURM_JOB_ID=number) as job:
        if trains:
            assert job.wait() == 0
        else:
            address = folder / number / "address"
            until(address.exists)
            environment = {"PENSTOCK_SERVICE": address.read_text().strip()}
            environment["PENSTOCK_TOKEN_FILE"] = str(folder / number / "token")
            with running([sys.executable, "-c", TRAINER], tmp_path, **environment) as reader:
                assert reader.wait() == 0
            job.terminate()
            assert job.wait() == 143
    log = (folder / number / "workers.log").read_text()
    assert log.count("penstock worker leaves") == 2
    assert "3 threads for each task" in log
    assert (folder / number / "token").stat().st_mode & 0o077 == 0


def test_a_container_file_names_this_version(capsys: pytest.CaptureFixture[str]) -> None:
    text = render_output(capsys, "container", "--extras", "files")
    assert re.search(r'pip install .*"penstock\[files\]==[0-9.]+', text)
    assert f"FROM python:{sys.version_info.major}.{sys.version_info.minor}-slim" in text


@pytest.mark.parametrize("namespace", ["2nd-team", 63 * "n"])
def test_every_namespace_of_kubernetes_is_taken(
    capsys: pytest.CaptureFixture[str], namespace: str
) -> None:
    text = render_output(capsys, "kubernetes", "--image", "x", "--namespace", namespace)
    assert f'namespace: "{namespace}"' in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["kubernetes", "--image", "a b"], "--image must be the name of an image, got 'a b'"),
        (["kubernetes", "--image", "x", "--name", "X"], "--name must be up to 42 small letters"),
        (["kubernetes", "--image", "x", "--name", 43 * "x"], "--name must be up to 42 small"),
        (["kubernetes", "--image", "x", "--namespace", 64 * "x"], "--namespace must be up to 63"),
        (["kubernetes", "--image", "x", "--cluster-domain", "a..b"], "must be a domain"),
        (["kubernetes", "--image", "x", "--worker-cpus", "0"], "--worker-cpus must be a quantity"),
        (["kubernetes", "--image", "x", "--workers", "9..2"], "--workers must be a number or"),
        (["kubernetes", "--image", "x", "--worker-memory", "lots"], "must be a quantity of"),
        (["slurm", "--folder", "a\nb"], "--folder must be a path"),
        (["slurm", "--folder", "/a", "--nodes", "0"], "--nodes must be at least 1"),
    ],
)
def test_wrong_arguments_are_named(
    capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert main(["deploy", *arguments]) == 1
    said = capsys.readouterr().err
    assert message in said
    assert said.startswith("penstock deploy: ")
