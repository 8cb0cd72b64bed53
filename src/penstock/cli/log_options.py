"""The logs of servers that the command line starts: a line for each event, on stderr.

Only the logger `penstock` is set up: what users' functions log stays theirs. Processes that run
plans inherit the setup, because they are forked later.
"""

from __future__ import annotations

import argparse
import datetime
import json
import logging
import sys

LEVELS = ("debug", "info", "warning", "error")
FORMATS = ("text", "json")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options about logs to the command of a server."""
    parser.add_argument(
        "--log-level",
        choices=LEVELS,
        help="debug: also readers and anonymous jobs that come and go; info: servers, named jobs "
        "and failing functions; warning: what needs attention (default: info)",
    )
    parser.add_argument(
        "--log-format",
        choices=FORMATS,
        default="text",
        help="json: one object in each line, for programs (default: text)",
    )


def set_up(given: argparse.Namespace, quiet: bool = False) -> None:
    """Logs as the options say; a `quiet` server logs what needs attention, if they say nothing."""
    logger = logging.getLogger("penstock")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if given.log_format == "json" else TextFormatter())
    logger.handlers[:] = [handler]
    logger.propagate = False
    logger.setLevel((given.log_level or ("warning" if quiet else "info")).upper())


class TextFormatter(logging.Formatter):
    """`2026-01-31T08:15:00.123Z INFO dispatcher: joined: worker data1:5051`."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(message)s")

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:  # noqa: N802
        return _time_of(record)


_FIELDS = ("event", "worker", "job", "job_name", "dataset")
"""What a line may be about: the event, the worker's address, and the job as in `status`."""


class JsonFormatter(logging.Formatter):
    """One object: `time`, `level`, `message`, what is known of `_FIELDS`, and `exception`."""

    def format(self, record: logging.LogRecord) -> str:
        fields = {
            "time": _time_of(record),
            "level": record.levelname.lower(),
            "message": record.getMessage(),
        }
        fields |= {name: vars(record)[name] for name in _FIELDS if name in vars(record)}
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return json.dumps(fields)


def _time_of(record: logging.LogRecord) -> str:
    """The time in UTC, as in RFC 3339."""
    time = datetime.datetime.fromtimestamp(record.created, datetime.UTC)
    return time.isoformat(timespec="milliseconds").replace("+00:00", "Z")
