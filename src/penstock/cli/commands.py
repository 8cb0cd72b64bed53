"""The commands and their arguments: each command is a function of parsed arguments to a status.

0: success, or the server stopped as requested; 1: an error, printed in one line; 2: wrong
arguments; 128 plus the number of the signal: stopped before it had finished.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

from penstock.cli import deploy, overview, server_processes
from penstock.data.experimental.service.servers import DispatchServer, WorkerServer
from penstock.errors import OpError
from penstock.service.host.server_setup import DispatcherConfig, WorkerConfig
from penstock.service.protocol import timing
from penstock.version import PROTOCOL, VERSION

Command = Callable[[argparse.Namespace], int]


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit status."""
    parser = _parser()
    parsed = parser.parse_args(arguments)
    if parsed.command_name is None:
        parser.print_help()
        return 2
    command: Command = parsed.command
    # As for a program in this folder: a console script has only its own folder on the path.
    if os.getcwd() not in sys.path and "" not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        status = command(parsed)
        sys.stdout.flush()
        return status
    except BrokenPipeError:  # As in `penstock status URL | head`.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # For the flush at the exit.
        return 141
    except OpError as error:
        message = error.message.removeprefix(f"{parsed.command_name}: ")
        print(f"penstock {parsed.command_name}: {message}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "penstock", description=_ABOUT, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--version", action="version", version=f"penstock {VERSION} (protocol {PROTOCOL})"
    )
    commands = parser.add_subparsers(title="commands", dest="command_name")

    def add(name: str, command: Command, help: str, about: str) -> argparse.ArgumentParser:
        made = commands.add_parser(
            name,
            help=help,
            description=about,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        made.set_defaults(command=command)
        return made

    _dispatcher_arguments(add("dispatcher", dispatcher, "start a dispatcher", _DISPATCHER))
    _worker_arguments(add("worker", worker, "start a worker", _WORKER))
    _status_arguments(add("status", status, "show what a service does", _STATUS))
    _top_arguments(add("top", top, "watch a service in the terminal", _TOP))
    _doctor_arguments(add("doctor", diagnose, "find out what is wrong", _DOCTOR))
    _forget_arguments(add("forget", forget, "forget jobs without readers", _FORGET))
    _certs_arguments(add("certs", certs, "make certificates and a token", _CERTS))
    deploy.add_arguments(add("deploy", deploy.kubernetes, "print files for clusters", deploy.ABOUT))
    about = _METRICS_TOKEN
    _secret_arguments(add("metrics-token", metrics_token, "print the token of scrapers", about))
    _link_arguments(add("dashboard-link", dashboard_link, "print a link to a dashboard", _LINK))
    return parser


def _server_arguments(parser: argparse.ArgumentParser, port: str) -> None:
    parser.add_argument("--port", type=int, default=0, metavar="N", help=port)
    parser.add_argument(
        "--host",
        default="localhost",
        metavar="NAME",
        help="name or address to listen on and to be reached by (default: localhost, "
        "which only this machine can reach)",
    )
    _secret_arguments(parser)
    parser.add_argument(
        "--functions",
        choices=("by_value", "by_reference"),
        default="by_value",
        help="by_reference: take no pickled functions, only names of them (default: by_value)",
    )
    parser.add_argument(
        "--metrics-port",
        type=int,
        metavar="N",
        help="port of /metrics (for Prometheus), /healthz and /readyz; 0 for a free one (default: "
        "none). Other machines need the token",
    )
    server_processes.add_log_arguments(parser)


def _dispatcher_arguments(parser: argparse.ArgumentParser) -> None:
    _server_arguments(parser, "port to listen on (default: a free one)")
    parser.add_argument("--work-dir", metavar="FOLDER", help="folder for the journal")
    parser.add_argument(
        "--standby",
        action="store_true",
        help="wait until the dispatcher that uses the same --work-dir has ended or is silent for "
        f"{timing.HOLD_SILENCE:g} s, and take over",
    )
    parser.add_argument(
        "--dashboard-port",
        type=int,
        metavar="N",
        help="port of a page that shows the service in a browser; 0 for a free one (default: none)",
    )
    parser.add_argument(
        "--dashboard-host",
        default="localhost",
        metavar="NAME",
        help="name or address of that page (default: localhost, also with --host)",
    )
    parser.add_argument(
        "--worker-timeout",
        type=float,
        metavar="SECONDS",
        help="how long a worker may be silent before it counts as lost (default: "
        f"{timing.WORKER_TIMEOUT:g})",
    )
    parser.add_argument(
        "--forget-after",
        type=float,
        metavar="SECONDS",
        help="how long to remember a named job that was read to its end (default: 3600)",
    )
    parser.add_argument(
        "--worker-address",
        action="append",
        metavar="HOST[:PORT]",
        help="a worker that may join, at any port if none is named; if given, only these workers "
        "may join (for policies that divide a dataset beforehand)",
    )


def _worker_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--dispatcher",
        required=True,
        metavar="HOST:PORT",
        help="where the dispatcher listens; with a standby: HOST:PORT,HOST:PORT",
    )
    _server_arguments(parser, "port to send data from (default: a free one)")
    parser.add_argument(
        "--worker-address",
        metavar="HOST:PORT",
        help="the address that clients use, if not --host; %%port%% is replaced by its port",
    )
    parser.add_argument(
        "--tag", action="append", default=[], metavar="WORD", help="a word about it, for status"
    )
    parser.add_argument(
        "--modules",
        action="append",
        default=[],
        metavar="NAME",
        help="a module whose functions it may run, with --functions by_reference",
    )
    parser.add_argument(
        "--dispatcher-timeout",
        type=float,
        metavar="SECONDS",
        help="how long to wait for the dispatcher when it starts (default: 30)",
    )
    parser.add_argument(
        "--drain-timeout",
        type=float,
        default=timing.DRAIN,
        metavar="SECONDS",
        help="how long it finishes the elements that it is making, after Ctrl-C or SIGTERM "
        "(default: 30)",
    )
    parser.add_argument("--quiet", action="store_true", help="print nothing but errors")
    parser.add_argument(
        "--stop-with-stdin",
        action="store_true",
        help="stop when the standard input is closed, as it is when the parent process ends",
    )


def _secret_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--token-file", metavar="FILE", help="a file with the secret of this service"
    )
    parser.add_argument(
        "--certificates", metavar="FOLDER", help="what penstock certs has made, for TLS"
    )


def _status_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("service", metavar="URL", help="the service, as in grpc://localhost:5050")
    parser.add_argument("--watch", action="store_true", help="again every second, until Ctrl-C")
    parser.add_argument("--json", action="store_true", help="as JSON, for programs")
    _secret_arguments(parser)


def _top_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("service", metavar="URL", help="the service, as in grpc://localhost:5050")
    parser.add_argument("--once", action="store_true", help="print it once, for scripts")
    _secret_arguments(parser)


def _doctor_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "service",
        metavar="URL",
        nargs="?",
        help="a service, as in grpc://localhost:5050 (default: this machine only)",
    )
    _secret_arguments(parser)


def _forget_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("service", metavar="URL", help="the service, as in grpc://localhost:5050")
    parser.add_argument(
        "job", metavar="JOB", nargs="?", help="the name of a job (default: all without readers)"
    )
    _secret_arguments(parser)


def _link_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("url", metavar="URL", help="the page, as in http://localhost:8080")
    _secret_arguments(parser)


def _certs_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="FOLDER", help="where to put them")
    parser.add_argument(
        "--host",
        action="append",
        default=[],
        metavar="NAME",
        help="a name or address of a machine with a dispatcher or worker; give all of them "
        "(localhost is always one), or *.example.org for a whole domain",
    )
    parser.add_argument(
        "--days", type=int, default=365, metavar="N", help="how long they are valid (default: 365)"
    )


def dispatcher(given: argparse.Namespace) -> int:
    server_processes.allow_files()
    config = DispatcherConfig(
        work_dir=given.work_dir,
        fault_tolerant_mode=given.work_dir is not None,
        worker_addresses=given.worker_address,
        worker_timeout_ms=_milliseconds(given.worker_timeout),
        forget_after_ms=_milliseconds(given.forget_after),
        standby=given.standby,
        dashboard_port=given.dashboard_port,
        dashboard_host=given.dashboard_host,
        **_server_options(given),
    )
    server_processes.set_up_logs(given)
    if given.standby and given.work_dir:
        print(f"penstock dispatcher stands by for {given.work_dir}", flush=True)
    return server_processes.run_dispatcher(DispatchServer(config, start=False))


def worker(given: argparse.Namespace) -> int:
    config = WorkerConfig(
        dispatcher_address=given.dispatcher.removeprefix("grpc://"),
        worker_address=given.worker_address,
        dispatcher_timeout_ms=_milliseconds(given.dispatcher_timeout),
        worker_tags=tuple(given.tag),
        modules=tuple(name for names in given.modules for name in names.split(",")),
        **_server_options(given),
    )
    server_processes.set_up_logs(given, given.quiet)
    return server_processes.run_worker(
        WorkerServer(config, start=False),
        given.quiet,
        given.stop_with_stdin,
        given.drain_timeout,
    )


def _milliseconds(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * 1000)


def _server_options(given: argparse.Namespace) -> dict[str, Any]:
    file = given.token_file
    return {
        "port": given.port,
        "host": given.host,
        "token": None if file is None else _read_token(file),
        "certificates": given.certificates,
        "functions": given.functions,
        "metrics_port": given.metrics_port,
    }


def status(given: argparse.Namespace) -> int:
    _use_secrets(given)
    show = overview.as_json if given.json else overview.as_tables
    return overview.run(given.service, show, given.watch)


def top(given: argparse.Namespace) -> int:
    from penstock.cli import top as terminal

    _use_secrets(given)
    return terminal.run(given.service, given.once)


def diagnose(given: argparse.Namespace) -> int:
    from penstock.cli import doctor

    _use_secrets(given)
    return doctor.run(given.service, given.certificates)


def forget(given: argparse.Namespace) -> int:
    _use_secrets(given)
    return overview.forget(given.service, given.job)


def _use_secrets(given: argparse.Namespace) -> None:
    """Puts the secrets into the environment, where clients look for them."""
    if given.token_file is not None:
        _read_token(given.token_file)  # Errors name the argument.
        os.environ.pop("PENSTOCK_TOKEN", None)
        os.environ["PENSTOCK_TOKEN_FILE"] = given.token_file
    if given.certificates is not None:
        os.environ["PENSTOCK_CERTIFICATES"] = given.certificates


def _read_token(path: str) -> bytes:
    from penstock.service.host.security import read_token

    return read_token(path, "--token-file")


def _find_token(given: argparse.Namespace) -> bytes:
    """The token that clients with these arguments find."""
    from penstock.service.host.security import find_token

    _use_secrets(given)
    return find_token(folder=os.environ.get("PENSTOCK_CERTIFICATES") or None).token


def metrics_token(given: argparse.Namespace) -> int:
    from penstock.service.host.http_pages import make_metrics_token

    print(make_metrics_token(_find_token(given)).decode())
    return 0


def dashboard_link(given: argparse.Namespace) -> int:
    from penstock.service.host.http_pages import make_link

    url = given.url if "://" in given.url else f"http://{given.url}"
    print(make_link(url, _find_token(given)))
    return 0


def certs(given: argparse.Namespace) -> int:
    from penstock.cli.certificates import make_certificates

    make_certificates(given.folder, given.host, given.days)
    print(
        f"certificates and a token are in {given.folder}; copy it to every machine of the service"
    )
    return 0


_ABOUT = """\
Input for model training, prepared by other processes and machines.

One dispatcher knows the datasets, any number of workers make the elements, and a training program
reads them with penstock.data.experimental.service.distribute.

on one machine:
  penstock dispatcher --port 5050 --work-dir ~/penstock
  penstock worker --dispatcher localhost:5050
  penstock status grpc://localhost:5050

and in the program that trains:
  dataset = dataset.apply(distribute("distributed_epoch", "grpc://localhost:5050"))

Programs of one user on one machine need nothing else. Between machines, all processes need the
same secret: see penstock certs --help.
"""

_DISPATCHER = """\
Starts a dispatcher and prints its address. It runs until Ctrl-C or SIGTERM.

With --work-dir it keeps a journal there. After a crash, start it again with the same --port and
--work-dir: it continues where it was, and so do all readers.

With --standby it takes over from a dispatcher that ends or hangs, if both have the same --work-dir
(on shared storage). Readers and workers then name both: grpc://data1:5050,data2:5050

With --dashboard-port it serves a page that shows what the service does, and prints a link to it.

example:
  penstock dispatcher --port 5050 --work-dir ~/penstock --dashboard-port 8080

for other machines:
  penstock certs ~/certs --host data1.example.org
  penstock dispatcher --port 5050 --host data1.example.org --certificates ~/certs
"""

_WORKER = """\
Starts a worker, which computes elements for the readers of its dispatcher. Workers may join and
leave at any time.

After Ctrl-C or SIGTERM it finishes the elements that it is making, and leaves; clients ask other
workers for the rest. A second one stops it at once: other workers then compute what it had begun.

On Linux, every plan runs in a process of its own. If a function ends this process, it is replaced,
and readers of other plans do not notice; penstock status counts these restarts.

Functions of your own modules are imported by their names, so start a worker where they can be
imported: in the folder of your program, or with PYTHONPATH.

example:
  penstock worker --dispatcher localhost:5050
"""

_STATUS = f"""\
Shows the workers and jobs of a service, and how many workers its readers could use.

examples:
  penstock status grpc://localhost:5050 --watch
  penstock status grpc://localhost:5050 --json

{overview.legend()}

--json has the same names and some ids more; docs/metrics.md describes all of them.
"""

_TOP = """\
Shows a service every second, until Ctrl-C: what sets the pace of each job and what would help,
workers, readers, and what happened. It needs no --dashboard-port, which shows the same in a
browser.

examples:
  penstock top grpc://localhost:5050
  penstock top grpc://localhost:5050 --once
"""

_DOCTOR = """\
Checks versions, limits, shared memory, ports, token, certificates and GPUs of this machine. With a
URL also the way of an element: to the dispatcher, to each worker, and one element through all of
them. Says what to change, and exits with status 1 if something is wrong.

examples:
  penstock doctor
  penstock doctor grpc://data1.example.org:5050 --certificates ~/certs
"""

_FORGET = """\
Makes a dispatcher forget a job, or all jobs, so that the names can be used again. Saved states of
its readers can still be restored, but the dispatcher no longer knows what other readers have read.
Jobs with readers are kept.

Without this command, a dispatcher forgets named jobs an hour after they were read to their end
(penstock dispatcher --forget-after SECONDS), and anonymous jobs at once.

examples:
  penstock forget grpc://localhost:5050 training
  penstock forget grpc://localhost:5050
"""

_METRICS_TOKEN = """\
Prints the token with which a scraper on another machine reads the metrics of dispatchers and
workers (--metrics-port). It is derived from the token of the service, and allows nothing else.

example:
  penstock metrics-token --token-file ~/token > penstock-metrics-token
"""

_LINK = """\
Prints a link to the dashboard of a dispatcher (--dashboard-port). It is valid once, for an hour;
the browser that opens it may look for a week. The link allows nothing but looking.

example:
  penstock dashboard-link http://localhost:8080
"""

_CERTS = """\
Makes a folder with everything that the machines of a service need to trust only each other:
certificates and keys for servers and for clients, and a token. Copy the folder to every machine,
over a secure connection, and name it there: with --certificates, with the environment variable
PENSTOCK_CERTIFICATES (which programs that read need), or in the config of a server.

example:
  penstock certs ~/certs --host data1.example.org --host 10.0.0.7
"""
