"""Messages on a data connection, how failures become messages, and the frames that carry both.

A worker answers the requests of one connection one after the other: by their turns (`Fetch.turn`)
and, within one task, by their first elements. Every message about a request carries its number. An
exception travels as text: its class (one of `penstock.errors`), its message and its traceback. A
client never runs or unpickles received bytes to make an exception.

A frame is a head, a message and, behind `Rows`, the columns of a chunk:

    head     24 bytes: two fixed bytes, the kind, the sizes of the two parts that follow, the
             checksum of the message, and that of the head up to here
    message  msgpack; of the kind that the head says
    body     the bytes of columns, as `element.buffers` packs them; if the message says that they
             are `checked`, their checksum follows, as part of the body

A receiver checks the head before it uses a size, and the message before it decodes it. After a
damaged head or message it cannot find the next frame, so the connection is closed. After a damaged
body it can: only that frame is lost. Every size is compared with a bound before memory is
allocated, and only the declared types are decoded. The tree of the elements is not sent, because
the client knows it. Unpacked columns are read-only views of the body.
"""

from __future__ import annotations

import builtins
import struct
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import google_crc32c
import msgspec
import numpy as np

from penstock import errors
from penstock.element.buffers import MALFORMED, Description, Packing, measure, unpack
from penstock.element.chunk import Chunk
from penstock.element.columns import Column
from penstock.engine.figures import Figures
from penstock.engine.numbering import Counting
from penstock.engine.processes.chunk_memory import Slab
from penstock.engine.tracebacks import format_for_others
from penstock.errors import DataLossError, InvalidArgumentError, OpError, UnknownError, kind_of
from penstock.service.protocol.messages import Message, Plain, Work, WorkerInfo

LARGE_STATE = 16 << 10
"""Bytes beyond which a state travels only when its worker leaves, and only once."""

MOST_STATE = 128 << 20
"""Bytes of the largest state that travels through a client."""


class Mark(Plain, frozen=True):
    """A stream's saved state before element `ordinal`, from which any worker can continue."""

    ordinal: int
    state: bytes
    worker: str = ""
    """The worker that can continue at once, because it has loaded the plan. If `state` is empty,
    that worker was given the state."""

    @property
    def is_large(self) -> bool:
        return len(self.state) > LARGE_STATE or bool(self.worker)


# From the client


class OpenTask(Message, frozen=True):
    """Defines which work `task` means in the fetches that follow."""

    task: int
    work: Work


class Fetch(Message, frozen=True):
    """Asks for elements `start` to `stop` of a task; `mark` is before them, if one is known."""

    request: int
    task: int
    start: int
    stop: int
    mark: Mark | None = None
    trace: str = ""
    """The W3C `traceparent` under which the worker traces element `start`; empty: it does not."""
    turn: int = 0
    """When the client needs the elements: requests with a lower number are answered first, even if
    one with a higher number was begun."""
    most_state: int = LARGE_STATE
    """Bytes of the largest state that a worker that leaves may send. A client that does not say
    this sends every mark with every request, so its marks must be small."""
    successor: WorkerInfo | None = None
    """The worker that continues the task if this one leaves; None: as in the last request that had
    one. A client that says this knows `Mark.worker` and `Progress.moving`."""


class CachedPart(Plain, frozen=True):
    """What a memory cache holds, from element `start` of the cache on."""

    cache: int
    """Which of the caches of the plan, in the order of the plan."""
    start: int
    elements: bytes = b""
    """A chunk, encoded as in a state; empty if there is none."""
    is_full: bool = False
    """Whether the cache has no further elements."""


class AddState(Message, frozen=True):
    """From a worker that leaves: a part of the state of a task, which its client will read here.

    The worker answers with `Done`. It does not know this message before protocol 2.
    """

    request: int
    task: int
    elements: bytes = b""
    """Elements that the sender has not sent yet, in the order of their numbers."""
    mark: Mark | None = None
    """Behind the last part: the state, with numbers in place of elements."""
    cached: CachedPart | None = None
    """A part of what a cache of the stream holds. A worker that ignores it fills the cache anew."""


class Release(Message, frozen=True):
    """Segments of shared memory that the client no longer reads."""

    segments: tuple[int, ...]
    retired: tuple[int, ...] = ()
    """Segments that must never be filled again: a process that the client forked may show them."""


class CloseTask(Message, frozen=True):
    """The client sends no more fetches of a task."""

    task: int


# From the worker


class Rows(Message, frozen=True):
    """`count` elements from `start` on. The bytes of their columns follow the message."""

    request: int
    start: int
    count: int
    columns: bytes
    """The description by which the receiver makes columns of the bytes."""
    segment: int = -1
    """The segment of shared memory that holds the bytes; -1: they follow the message."""
    nbytes: int = 0
    packed: str = ""
    """The compression of the bytes; empty for none."""
    mark: Mark | None = None
    seconds: float = 0.0
    """The time that it took to compute them."""
    structure: str = ""
    """The structure of each element; empty for a bare leaf."""
    checked: bool = False
    """Whether the checksum of the bytes that follow is behind them."""
    began: int | None = None
    """For a stream that is a part of a file: where it began, if the worker had to find that out."""
    operators: tuple[Figures, ...] = ()
    """With the last elements of a request, what the operators of the stream have done since the
    last such report to any client."""


class NumberInPiece(Plain, frozen=True):
    """The number of an element in the text of an error, where the worker has only a piece of the
    plan; see `engine/numbering.py`."""

    operator: str
    """The operator whose function failed: its key."""
    number: int
    """How many elements of the piece came before, as that operator counts."""
    at: int
    """Where the number begins in the text."""
    is_last: bool = False
    takes_merged: bool = False


class Failed(Message, frozen=True):
    """Element `ordinal` could not be computed; the elements behind it follow.

    `place` is its place among the inputs of an `interleave`, if the client merges them.
    """

    request: int
    ordinal: int
    kind: str
    message: str
    remote: str = ""
    """The traceback, as text."""
    cause: tuple[str, str] = ("", "")
    """The class and the text of the exception that a function raised."""
    began: int | None = None
    place: int | None = None
    counted: NumberInPiece | None = None
    """The number in the message, if it counts only the elements of this stream."""
    operators: tuple[Figures, ...] = ()
    """As in `Rows`, if it is the last element of a request."""


class Done(Message, frozen=True):
    """A request is answered, up to the end of the stream if `length` says where that is."""

    request: int
    length: int | None = None
    began: int | None = None
    ended: int | None = None
    """For a stream that is a part of a file: where it began and ended; see `Work.begin`."""
    lengths: tuple[int, ...] | None = None
    """If the client merges the inputs of an `interleave`: the number of elements of each input of
    the stream, before operators behind the `interleave` change it; -1 for an input that failed."""
    used: dict[str, int] | None = None
    """At the end of a piece: how many elements each operator that calls a function has used, by
    its key; None if that is not known."""
    operators: tuple[Figures, ...] = ()
    """As in `Rows`, if the stream ended before the last element that was asked for."""


class Impossible(Message, frozen=True):
    """This worker cannot answer a request: it cannot decode the plan, or lacks a module."""

    request: int
    kind: str
    message: str
    elsewhere: bool = False
    """Whether another worker may be able to answer it."""


class Progress(Message, frozen=True):
    """The worker still computes the answer to a request, which takes long."""

    request: int
    """The number of the request; 0 if the worker does something else first."""
    where: str = ""
    """The user's function that runs, as "f at train.py:2"; empty if none does."""
    element: int | None = None
    """The element that the function is called for, as errors of the function count; None if that
    is not known, or if the worker has only a piece of the plan."""
    operators: tuple[Figures, ...] = ()
    """As in `Rows`; the call that runs counts until now."""
    leaves: bool = False
    """Whether the worker is about to stop: it makes this element and then no other."""
    moving: tuple[int, ...] = ()
    """Tasks for which it still makes elements, while their states move to another worker."""
    moved: tuple[MovedTask, ...] = ()
    """Tasks for which it makes nothing more, and from where other workers continue."""


class MovedTask(Plain, frozen=True):
    """The mark from which another worker continues a task."""

    task: int
    mark: Mark


class Closing(Message, frozen=True):
    """The last message on a connection that the worker closes, with the reason."""

    reason: str


ToWorker = OpenTask | Fetch | AddState | Release | CloseTask
ToClient = Rows | Failed | Done | Impossible | Progress | Closing


_MOST_TEXT = 1 << 14
"""Characters of a message or traceback; longer texts travel without their middle."""

_ELSEWHERE = (
    errors.NotFoundError,
    errors.UnavailableError,
    errors.ResourceExhaustedError,
    errors.PermissionDeniedError,
    errors.DataLossError,
    errors.DeadlineExceededError,
    errors.FailedPreconditionError,
)
"""Errors that may be due to one machine: another may have the file, the memory or the module."""


@dataclass(frozen=True)
class Fault:
    """An exception as text, without references to frames; `Failed` has the same fields."""

    kind: str
    message: str
    remote: str = ""
    cause: tuple[str, str] = ("", "")
    counted: NumberInPiece | None = None

    @property
    def nbytes(self) -> int:
        return len(self.message) + len(self.remote) + len(self.cause[1])


_PIECE_REMARK = ", which counts the elements of one piece"


def fault_of(error: BaseException, worker: str) -> Fault:
    """Returns an exception, raised on the worker at `worker`, as text."""
    kind = kind_of(error)
    text = str(error) if isinstance(error, OpError) else f"{type(error).__name__}: {error}"
    trace = format_for_others(error)
    message = f"{_shorten_text(text)} (on worker {worker})"
    return Fault(_nearest_class(kind).__name__, message, _shorten_text(trace), _cause_of(error))


def fault_in_piece(error: BaseException, worker: str, counting: Counting | None) -> Fault:
    """Like `fault_of`, for a worker that computes only a piece of the plan.

    `counting` says how the operator that failed numbers the elements of the piece. If it is None, a
    number in the text may count the elements of the piece or of the plan, and the text says so.
    """
    fault = fault_of(error, f"{worker}{_PIECE_REMARK}")
    counted: tuple[Any, int] | None = getattr(error, "counted", None)
    at = -1 if counted is None else fault.message.find(f" for element {counted[1]}")
    if at < 0:
        has_number = " for element " in fault.message
        return fault if has_number else replace(fault, message=_without_remark(fault.message))
    if counting is None:
        return replace(fault, message=_without_remark(fault.message))
    at += len(" for element ")
    assert counted is not None
    number = NumberInPiece(
        counting.key,
        counted[1] - counting.first,
        at,
        is_last=counting.is_last,
        takes_merged=counting.takes_merged,
    )
    message = _with_number(fault.message, at, counted[1], number.number)
    return replace(fault, message=message, counted=number)


def _with_number(text: str, at: int, old: int, new: int) -> str:
    return f"{text[:at]}{new}{text[at + len(str(old)) :]}"


def _without_remark(text: str) -> str:
    """The text of an error without the remark that its number counts only one piece."""
    return "".join(text.rsplit(_PIECE_REMARK, 1))


def renumber(error: OpError, counted: NumberInPiece, number: int) -> None:
    """Writes the number that an element has in the whole plan into the text of its error."""
    text = _with_number(error.message, counted.at, counted.number, number)
    error.args = (_without_remark(text),)


def _cause_of(error: BaseException) -> tuple[str, str]:
    cause = error.__cause__ if isinstance(error, OpError) else error
    if cause is None:
        return "", ""
    arguments = cause.args
    text = arguments[0] if len(arguments) == 1 and isinstance(arguments[0], str) else str(cause)
    return type(cause).__name__, _shorten_text(text)


def from_failed(failed: Failed) -> OpError:
    """Returns the exception for the user, with the remote traceback as a note."""
    error = _find_class(failed.kind)(failed.message)
    if failed.remote:
        error.add_note(f"Traceback on the worker:\n{failed.remote.rstrip()}")
    error.__cause__ = _make_cause(*failed.cause)
    return error


def _make_cause(name: str, text: str) -> Exception | None:
    """Returns what the function raised, if its class is a builtin or one of `penstock.errors`."""
    found = getattr(builtins, name, None) or getattr(errors, name, None)
    if not (isinstance(found, type) and issubclass(found, Exception)):
        return UnknownError(f"{name}: {text}") if name else None
    try:
        return found(text)
    except TypeError:  # Its constructor needs more than a text.
        return UnknownError(f"{name}: {text}")


def to_impossible(request: int, error: BaseException, worker: str) -> Impossible:
    """Returns the message for a request that cannot be answered at all."""
    fault = fault_of(error, worker)
    return Impossible(request, fault.kind, fault.message, isinstance(error, _ELSEWHERE))


def from_impossible(impossible: Impossible) -> OpError:
    """Returns the exception for the user, for the case that no other worker can answer."""
    return _find_class(impossible.kind)(impossible.message)


def _find_class(kind: str) -> type[OpError]:
    found = getattr(errors, kind, None)
    return found if isinstance(found, type) and issubclass(found, OpError) else UnknownError


def _nearest_class(kind: type[OpError]) -> type[OpError]:
    """Returns the class itself, or for a subclass of a user its nearest base in our errors."""
    return next(base for base in kind.__mro__ if _find_class(base.__name__) is base)


def _shorten_text(text: str) -> str:
    if len(text) <= _MOST_TEXT:
        return text
    half = _MOST_TEXT // 2
    return f"{text[:half]}\n... {len(text) - 2 * half} characters left out ...\n{text[-half:]}"


MESSAGE, SLAB = 0, 1
"""Kinds of frames: a message, and a slab of shared memory that later messages use."""

MAX_MESSAGE = 256 << 20
MAX_BODY = 8 << 30

CHECK_SIZE = 4
"""Bytes of a checksum behind a body."""

_UNDAMAGED = 0x48674BC7

_HEAD = struct.Struct("<2sBxIQI")
_MAGIC = b"\xf0P"
_CHECKED = _HEAD.size
HEAD_SIZE = _CHECKED + 4

_COPIED = 4 << 10  # Up to this size, a copy is faster than a NumPy view.

encode = msgspec.msgpack.Encoder().encode
decoder_of_client: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(ToClient)
"""Decodes what a client receives."""
decoder_of_worker: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(ToWorker)
"""Decodes what a worker receives."""

_CACHED = 2048  # Bytes of the longest description that is cached.

_decoder = msgspec.msgpack.Decoder(tuple[Description, ...])

slab_decoder = msgspec.msgpack.Decoder(Slab)


def decode_message(decoder: msgspec.msgpack.Decoder[Any], data: bytes | memoryview) -> Any:
    """Decodes a message; raises DataLossError if `data` is none."""
    try:
        return decoder.decode(data)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise DataLossError(f"data connection: what arrived is not a message ({error})") from None


def checksum(parts: Iterable[bytes | memoryview], crc: int = 0) -> int:
    """The CRC32C of consecutive parts, behind bytes whose CRC32C is `crc`."""
    for part in parts:
        small = len(part) <= _COPIED
        crc = google_crc32c.extend(crc, bytes(part) if small else np.frombuffer(part, np.uint8))
    return crc


def check_bytes(crc: int) -> bytes:
    """A checksum as the bytes that follow a body."""
    return crc.to_bytes(CHECK_SIZE, "little")


def is_undamaged(crc: int) -> bool:
    """Whether a body has the checksum behind it; `crc` is the CRC32C of both.

    A CRC32C that continues over itself becomes the same number for all bytes before it.
    """
    return crc == _UNDAMAGED


def frame(message: Any, body: int = 0, kind: int = MESSAGE) -> list[bytes]:
    """Head and message of a frame whose body has `body` bytes."""
    data = encode(message)
    return [frame_head(kind, len(data), body, google_crc32c.value(data)), data]


def frame_head(kind: int, message: int, body: int = 0, check: int = 0) -> bytes:
    """The head of a frame with parts of these sizes; `check` is the checksum of the message."""
    if message > MAX_MESSAGE or body > MAX_BODY:
        raise InvalidArgumentError(
            f"data connection: {message} bytes of message and {body} bytes of elements cannot be "
            f"sent at once (at most {MAX_MESSAGE} and {MAX_BODY}); make the elements smaller"
        )
    head = _HEAD.pack(_MAGIC, kind, message, body, check)
    check_head: int = google_crc32c.value(head)
    return head + check_head.to_bytes(4, "little")


def read_head(data: bytes | memoryview) -> tuple[int, int, int, int]:
    """Kind, sizes of message and body, and checksum; raises DataLossError if it is no head."""
    head = bytes(data)
    magic, kind, message, body, check = _HEAD.unpack_from(head)
    if magic != _MAGIC or kind > SLAB:
        raise DataLossError(f"data connection: {head!r} is not the head of a frame")
    if google_crc32c.value(head[:_CHECKED]) != int.from_bytes(head[_CHECKED:], "little"):
        raise DataLossError(f"data connection: the head of a frame arrived damaged ({head!r})")
    if message > MAX_MESSAGE or body > MAX_BODY:
        raise DataLossError(
            f"data connection: a frame of {message} and {body} bytes is larger than any can be"
        )
    return kind, message, body, check


def pack_columns(chunk: Chunk) -> tuple[bytes, list[memoryview]]:
    """The description of a chunk's columns, and their bytes: views where they are contiguous."""
    packing = Packing("sent to another process")
    described = [packing.column(column) for column in chunk.columns]
    return encode(described), packing.parts


def unpack_columns(description: bytes, body: memoryview) -> list[Column]:
    """The columns in `body`; raises DataLossError if it does not match the description."""
    described, size = _decode(description)
    if size != len(body):
        raise DataLossError(f"data connection: {len(body)} bytes of elements, described as {size}")
    try:
        return unpack(described, body.toreadonly())
    except MALFORMED as error:
        raise DataLossError(f"data connection: damaged columns ({error})") from None


def body_size(description: bytes) -> int:
    """How many bytes the columns take; raises DataLossError if it is no description."""
    return _decode(description)[1]


def _decode(description: bytes) -> tuple[tuple[Description, ...], int]:
    """The described columns, and the number of bytes that they take."""
    try:
        short = len(description) <= _CACHED
        return _decode_cached(description) if short else _decode_uncached(description)
    except (msgspec.MsgspecError, *MALFORMED) as error:
        raise DataLossError(f"data connection: not a description ({error})") from None


def _decode_uncached(description: bytes) -> tuple[tuple[Description, ...], int]:
    described = _decoder.decode(description)
    return described, sum(map(measure, described))


# Most chunks of a stream have equal descriptions.
_decode_cached = lru_cache(maxsize=256)(_decode_uncached)
