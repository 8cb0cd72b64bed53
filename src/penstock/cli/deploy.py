"""`penstock deploy`: files that start a data service on Kubernetes or Slurm, and an image for it.

A file is printed, not applied: its user reads it, changes it and keeps it. The templates beside
this module are such files with names for what differs. All values are checked before they are put
into a template, so no value contains quotes. Words are in quotes there, because YAML reads
some of them as other values: on, null, 12.
"""

from __future__ import annotations

import argparse
import re
import shlex
import sys
from collections.abc import Callable
from importlib.resources import files
from string import Template

from penstock.errors import InvalidArgumentError
from penstock.version import VERSION

_QUANTITY = r"[0-9]+(\.[0-9]+)?(m|k|Ki|M|Mi|G|Gi|T|Ti)?"
_LABEL = r"[a-z]([a-z0-9-]{0,40}[a-z0-9])?"
_NAMESPACE = r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?"


def kubernetes(given: argparse.Namespace) -> int:
    """Prints the manifests of a service."""
    least, most = _range_of(given.workers)
    name = _check_text(
        "--name", given.name, _LABEL, "up to 42 small letters, digits and -, a letter first"
    )
    namespace = _check_text(
        "--namespace", given.namespace, _NAMESPACE, "up to 63 small letters, digits and -"
    )
    domain = _check_text(
        "--cluster-domain", given.cluster_domain, rf"{_NAMESPACE}(\.{_NAMESPACE})*", "a domain"
    )
    drain = _positive("--drain-timeout", given.drain_timeout)
    storage_class = ""
    if given.storage_class is not None:
        chosen = _check_text("--storage-class", given.storage_class, r"[a-z0-9.-]+", "a name")
        storage_class = f'        storageClassName: "{chosen}"\n'
    # Where an autoscaler chooses the number, applying the file again must not change it.
    replicas = f"  replicas: {least}\n" if most == least else ""
    values = {
        "name": name,
        "namespace": namespace,
        "image": _check_text("--image", given.image, r"[\w.:/@-]+", "the name of an image"),
        "dispatcher": f"{name}-dispatcher.{namespace}.svc.{domain}",
        "workers_domain": f"{name}-workers.{namespace}.svc.{domain}",
        "least_workers": str(least),
        "replicas": replicas,
        "most_workers": str(most),
        "cpus": _quantity("--worker-cpus", given.worker_cpus),
        "memory": _quantity("--worker-memory", given.worker_memory),
        "storage": _quantity("--storage", given.storage),
        "storage_class": storage_class,
        "drain_seconds": str(drain),
        "kill_after": str(drain + 15),
    }
    autoscaler = _render("autoscaler.yaml", values) if most > least else ""
    return _print("kubernetes.yaml", {**values, "autoscaler": autoscaler})


def slurm(given: argparse.Namespace) -> int:
    """Prints a batch script that starts a service, and a training program beside it."""
    partition = ""
    if given.partition is not None:
        chosen = _check_text("--partition", given.partition, r"[\w.,-]+", "a name")
        partition = f"#SBATCH --partition={chosen}\n"
    training = given.training[1:] if given.training[:1] == ["--"] else given.training
    # In the background: bash runs no trap while it waits for a command in the foreground.
    program = f'{shlex.join(training)} &\ntraining=$!\nwait "$training"'
    values = {
        "name": _check_text("--name", given.name, r"[\w.-]+", "letters, digits, . and -"),
        "nodes": str(_positive("--nodes", given.nodes)),
        "workers_per_node": str(_positive("--workers-per-node", given.workers_per_node)),
        "cpus": str(_positive("--worker-cpus", given.worker_cpus)),
        "time": _check_text(
            "--time", given.time, r"[0-9:-]+", "a time as Slurm writes it, 8:00:00"
        ),
        "folder": shlex.quote(_check_text("--folder", given.folder, r"[^\n\r\0]+", "a path")),
        "partition": partition,
        "training": program if training else 'wait "$workers"',
    }
    return _print("slurm.sh", values)


def container(given: argparse.Namespace) -> int:
    """Prints how an image with penstock is built."""
    extras = _check_text("--extras", given.extras, r"[a-z,]*", "names of extras, by comma")
    values = {
        "python": _check_text("--python", given.python, r"3\.[0-9]+", "a version such as 3.12"),
        "extras": f"[{extras}]" if extras else "",
        "version": VERSION,
    }
    return _print("Containerfile", values)


def _print(template: str, values: dict[str, str]) -> int:
    command = shlex.join(["penstock", *sys.argv[1:]])
    print(_render(template, {**values, "command": " ".join(command.split())}), end="")
    return 0


def _render(template: str, values: dict[str, str]) -> str:
    text = files("penstock.cli").joinpath("templates", template).read_text(encoding="utf-8")
    return Template(text).substitute(values)


def _check_text(argument: str, value: str, pattern: str, what: str) -> str:
    if not re.fullmatch(pattern, value, re.ASCII):
        raise InvalidArgumentError(f"{argument} must be {what}, got {value!r}")
    return value


def _quantity(argument: str, value: str) -> str:
    what = "a quantity of Kubernetes such as 2, 500m or 8Gi"
    return _check_text(argument, value, rf"(?=.*[1-9]){_QUANTITY}", what)


def _positive(argument: str, value: int) -> int:
    if value < 1:
        raise InvalidArgumentError(f"{argument} must be at least 1, got {value}")
    return value


def _range_of(workers: str) -> tuple[int, int]:
    """The bounds of a number of workers: "4", or "4..64" if an autoscaler chooses it."""
    found = re.fullmatch(r"([0-9]+)(?:\.\.([0-9]+))?", workers, re.ASCII)
    least = int(found[1]) if found else 0
    most = int(found[2] or least) if found else 0
    if not 1 <= least <= most:
        raise InvalidArgumentError(f"--workers must be a number or a range 4..64, got {workers!r}")
    return least, most


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds what `penstock deploy` takes."""
    kinds = parser.add_subparsers(title="where", dest="where", required=True, metavar="WHERE")

    def add(name: str, command: Callable[[argparse.Namespace], int]) -> argparse.ArgumentParser:
        made = kinds.add_parser(
            name,
            help=(command.__doc__ or "").rstrip("."),
            description=_ABOUT[name],
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        made.set_defaults(command=command)
        return made

    _kubernetes_arguments(add("kubernetes", kubernetes))
    _slurm_arguments(add("slurm", slurm))
    made = add("container", container)
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    made.add_argument(
        "--python",
        default=here,
        metavar="VERSION",
        help=f"that of the training programs (default: {here}, the one that runs this command)",
    )
    made.add_argument(
        "--extras",
        default="files,images,metrics,remote",
        metavar="NAMES",
        help="(default: %(default)s)",
    )


def _kubernetes_arguments(parser: argparse.ArgumentParser) -> None:
    def add(name: str, default: str | None, metavar: str, help: str) -> None:
        shown = "" if default is None else " (default: %(default)s)"
        parser.add_argument(name, default=default, metavar=metavar, help=help + shown)

    parser.add_argument("--image", required=True, metavar="IMAGE", help="an image with penstock")
    add("--name", "penstock", "NAME", "what the names of all objects begin with")
    add("--namespace", "default", "NAME", "the namespace")
    add("--workers", "4", "N|N..M", "how many workers; with a range, an autoscaler chooses")
    add("--worker-cpus", "1", "CPUS", "what a worker requests")
    add("--worker-memory", "4Gi", "BYTES", "what a worker requests, and its limit")
    add("--storage", "10Gi", "BYTES", "the volume for the dispatcher's journal")
    add("--storage-class", None, "NAME", "the class of that volume")
    add("--cluster-domain", "cluster.local", "DOMAIN", "the domain of the cluster")
    parser.add_argument(
        "--drain-timeout",
        type=int,
        default=60,
        metavar="SECONDS",
        help="how long a worker that is to end may finish what it is making (default: 60)",
    )


def _slurm_arguments(parser: argparse.ArgumentParser) -> None:
    def count(name: str, default: int, help: str) -> None:
        parser.add_argument(
            name, type=int, default=default, metavar="N", help=f"{help} (default: {default})"
        )

    parser.add_argument(
        "--folder", required=True, metavar="FOLDER", help="a folder that all nodes see"
    )
    parser.add_argument("--name", default="penstock", metavar="NAME", help="the job's name")
    count("--nodes", 1, "nodes of the job")
    count("--workers-per-node", 8, "workers on each node")
    count("--worker-cpus", 1, "processors for each worker")
    parser.add_argument("--time", default="24:00:00", metavar="TIME", help="(default: 24:00:00)")
    parser.add_argument("--partition", metavar="NAME", help="the partition of the job")
    parser.add_argument(
        "training",
        nargs=argparse.REMAINDER,
        metavar="-- COMMAND",
        help="the program that trains; the job ends with it (default: workers only)",
    )


ABOUT = """\
Prints files that start a data service where your cluster manager runs things. Read them, change
them and keep them with your project: penstock needs no operator and no chart.
"""

_ABOUT = {
    "kubernetes": """\
Prints manifests: a dispatcher with a volume for its journal, workers, a budget for disruptions and
a network policy; with a range of workers also an autoscaler. Certificates and token come from a
Secret; the first lines of the output say how to make it.

example:
  penstock deploy kubernetes --image registry.example.org/train:1 --workers 4..64 > service.yaml
""",
    "slurm": """\
Prints a batch script: a dispatcher on the first node, workers on all of them, and a training
program that finds their address in the variable PENSTOCK_SERVICE.

example:
  penstock deploy slurm --folder /shared/penstock --nodes 2 -- python train.py > train.sbatch
""",
    "container": """\
Prints a container file for an image with penstock.

example:
  penstock deploy container > Containerfile
""",
}
