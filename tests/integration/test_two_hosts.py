"""Two hosts: network namespaces with a cable between them, client here, service there."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

CLIENT = """
import sys
import numpy
import penstock as tf
service = tf.data.experimental.service
dataset = tf.data.Dataset.range(1000).map(lambda x: x * x).batch(10)
read = dataset.apply(service.distribute("distributed_epoch", sys.argv[1]))
assert [batch.tolist() for batch in read] == [batch.tolist() for batch in dataset]
rows = numpy.arange(3 << 20).reshape(-1, 1 << 10)
large = tf.data.Dataset.from_tensor_slices(rows).batch(256)
read = large.apply(service.distribute("distributed_epoch", sys.argv[1]))
assert numpy.array_equal(numpy.concatenate(list(read)), rows)
try:
    iterator = iter(
        dataset.apply(
            service.distribute("distributed_epoch", sys.argv[1], data_transfer_protocol="shm")
        )
    )
    next(iterator)
except tf.errors.UnavailableError as error:
    print(error)
"""


def ip(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["ip", *arguments], capture_output=True, text=True, check=True)


def why_not() -> str | None:
    """Why there can be no namespaces here."""
    if shutil.which("ip") is None:
        return "the command ip is not installed"
    name = f"ps{uuid.uuid4().hex[:8]}"
    try:
        ip("netns", "add", name)
        ip("netns", "exec", name, "true")
    except subprocess.CalledProcessError as error:
        return f"ip netns cannot be used: {error.stderr.strip()}"
    finally:
        subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False)
    return None


@contextmanager
def hosts() -> Iterator[tuple[str, str]]:
    """The names of two namespaces, 10.77.0.1 and 10.77.0.2."""
    tag = uuid.uuid4().hex[:6]
    names = (f"psa{tag}", f"psb{tag}")
    with ExitStack() as stack:
        for name in names:
            ip("netns", "add", name)
            stack.callback(ip, "netns", "delete", name)
        cable = ("link", "add", names[0], "netns", names[0], "type", "veth")
        ip(*cable, "peer", "name", names[1], "netns", names[1])
        for number, name in enumerate(names, 1):
            ip("-n", name, "address", "add", f"10.77.0.{number}/24", "dev", name)
            ip("-n", name, "link", "set", name, "up")
            ip("-n", name, "link", "set", "lo", "up")
        yield names


@contextmanager
def start_command(host: str, *arguments: str, token: str) -> Iterator[None]:
    """Runs a command of penstock on a host, from its first line of output on."""
    process = subprocess.Popen(
        ["ip", "netns", "exec", host, sys.executable, "-m", "penstock", *arguments],
        stdout=subprocess.PIPE,
        env={**os.environ, "PENSTOCK_TOKEN": token},
        text=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("penstock")
        yield
    finally:
        process.kill()
        process.communicate()


REASON = why_not()


@pytest.mark.skipif(REASON is not None, reason=str(REASON))
def test_a_client_on_another_host_reads_by_tcp() -> None:
    token = uuid.uuid4().hex
    with (
        hosts() as (here, there),
        start_command(there, "dispatcher", "--host", "10.77.0.2", "--port", "5050", token=token),
        start_command(
            there,
            *("worker", "--dispatcher", "10.77.0.2:5050", "--host", "10.77.0.2"),
            *("--worker-address", "10.77.0.2:%port%"),
            token=token,
        ),
    ):
        client = subprocess.run(
            ["ip", "netns", "exec", here, sys.executable, "-c", CLIENT, "grpc://10.77.0.2:5050"],
            env={**os.environ, "PENSTOCK_TOKEN": token},
            capture_output=True,
            text=True,
            check=False,
        )
    assert client.returncode == 0, client.stderr
    assert "shares no memory with this process" in client.stdout


READER = """
import logging, sys
import penstock as tf
logging.basicConfig(format="%(message)s")
service = tf.data.experimental.service
dataset = tf.data.Dataset.range(2000).map(lambda x: x * x)
iterator = iter(
    dataset.apply(
        service.distribute("distributed_epoch", sys.argv[1], max_outstanding_requests=8)
    )
)
found = [int(next(iterator)) for _ in range(5)]
print("reading", flush=True)
sys.stdin.readline()
found += [int(x) for x in iterator]
assert found == [x * x for x in range(2000)]
print("all there")
"""


@pytest.mark.skipif(REASON is not None, reason=str(REASON))
def test_a_client_and_one_of_two_workers_do_not_reach_each_other() -> None:
    """Every process reaches the dispatcher, so only the client's operating system notices."""
    token, service = uuid.uuid4().hex, "10.77.0.2:5050"
    with ExitStack() as stack:
        here, there = stack.enter_context(hosts())
        ip("-n", there, "address", "add", "10.77.0.3/24", "dev", there)
        serve = functools.partial(start_command, there, token=token)
        stack.enter_context(
            serve("dispatcher", "--host", "10.77.0.2", "--port", "5050", "--worker-timeout", "4")
        )
        for address in ("10.77.0.2", "10.77.0.3"):
            where = ("--host", address, "--worker-address", f"{address}:%port%")
            stack.enter_context(serve("worker", "--dispatcher", service, *where))
        client = subprocess.Popen(
            ["ip", "netns", "exec", here, sys.executable, "-c", READER, f"grpc://{service}"],
            env={**os.environ, "PENSTOCK_TOKEN": token},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        stack.callback(client.kill)
        assert client.stdout is not None
        assert client.stdout.readline() == "reading\n"
        # What the client sends to this address reaches no worker from now on.
        nobody = ("lladdr", "02:00:00:00:00:01", "nud", "permanent", "dev", here)
        ip("-n", here, "neighbour", "replace", "10.77.0.3", *nobody)
        found, said = client.communicate("go\n")
    assert found == "all there\n", said
    assert "worker 10.77.0.3:" in said
    assert "other workers (1 are connected) are asked for what it owes" in said
