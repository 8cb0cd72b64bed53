"""Plans and their shared arrays: the dispatcher's stores, what clients upload, workers' caches.

A plan is known only once all of its bytes have arrived and its digest is right. Digests and names
come from the network: nothing but a valid digest becomes part of a path, and nothing but a valid
name becomes a key.

A plan is code. A worker decodes only bytes that came from the dispatcher and have the right digest,
each plan once. A worker that takes functions by reference decodes no pickles at all.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import importlib.util
import os
import re
import tempfile
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import IO, Any

import msgspec
import numpy as np

from penstock.engine.formats.files import translate_errors
from penstock.engine.processes.array_offers import ArrayOffer
from penstock.engine.processes.shared_arrays import OpenArrays
from penstock.errors import (
    DataLossError,
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    OpError,
    ResourceExhaustedError,
    UnavailableError,
)
from penstock.plan.array_references import Resolve
from penstock.plan.codec import decode
from penstock.plan.nodes import Node
from penstock.plan.references import decode_by_reference
from penstock.service.host.runtime import MACHINE
from penstock.service.protocol import timing
from penstock.service.protocol.messages import (
    GetArray,
    GetArrayReply,
    GetPlan,
    GetPlanReply,
    PutArray,
    PutArrayReply,
    Reply,
    Request,
)

LARGEST_PLAN = 4 << 30
"""Bytes of the largest plan that is stored or fetched."""

PART = 4 << 20
"""Bytes of a plan or an array in one message."""

_MOST_UPLOADS = 64
"""Plans that may be incomplete at the same time; then the one idle for longest is dropped."""


@dataclass
class _Upload:
    """A plan whose first `size` bytes have arrived."""

    total: int
    size: int
    hash: Any


class PlanStore:
    """The plans in `folder`, which is made if it does not exist. Thread-safe.

    Without a folder, plans are kept as long as this object.
    """

    def __init__(self, folder: str | None = None, largest: int = LARGEST_PLAN) -> None:
        self._largest = largest
        self._lock = threading.Lock()
        self._uploads: dict[str, _Upload] = {}  #: guarded by _lock; least recently used first
        self._sizes: dict[str, int] = {}  #: guarded by _lock
        """The sizes of complete plans whose digest was checked."""
        self._array_names: dict[str, list[str]] = {}  #: guarded by _lock; by plan
        with translate_errors(folder or tempfile.gettempdir(), "dispatcher"):
            self._storage = FolderStorage(folder) if folder else TemporaryStorage()

    def put(self, digest: str, offset: int, total: int, data: bytes) -> int:
        """Adds the bytes that begin at `offset`; returns how many bytes the store has now.

        Bytes that it has already, or that leave a gap, are ignored. The client continues at the
        returned offset, so parts may be repeated, and several clients may send one plan.
        """
        self._check_part(digest, offset, total, data)
        with self._lock:
            if (size := self._size(digest)) is not None:
                return size
            plan = self._find_upload(digest, total)
            if data and offset == plan.size:
                self._append(digest, plan, data)
            return plan.size

    def get(self, digest: str, offset: int = 0) -> tuple[bytes, int]:
        """Up to `PART` bytes from `offset` on, and the size of the plan."""
        with self._lock:
            size = self._size(digest) if _is_digest(digest) else None
        if size is None:
            raise NotFoundError(
                f"plan {digest[:12]!r} is not known to this dispatcher; it may have been started "
                "anew without its work_dir; register the dataset again"
            )
        with self._disk():
            return self._storage.read(digest, max(offset, 0), PART), size

    def __contains__(self, digest: str) -> bool:
        with self._lock:
            return _is_digest(digest) and self._size(digest) is not None

    def forget(self, digest: str) -> None:
        """Removes a plan that no dataset has any more."""
        with self._lock, self._disk():
            self._sizes.pop(digest, None)
            if digest not in self._uploads:
                self._storage.remove(digest)

    def has_array(self, name: str) -> bool:
        """Whether a complete plan has the shared array of this name."""
        with self._lock, self._disk():
            digests = [each for each in self._storage.digests() if self._size(each) is not None]
            known = self._array_names
            for digest in digests:
                if digest not in known:
                    known[digest] = split_array_names(self._storage.read(digest, 0, PART))[0]
            self._array_names = {digest: known[digest] for digest in digests}
            return any(name in names for names in self._array_names.values())

    def find_unknown(self, known: Callable[[str], bool]) -> list[str]:
        """The digests of stored plans for which `known` returns False."""
        with self._lock, self._disk():
            return [digest for digest in self._storage.digests() if not known(digest)]

    def _check_part(self, digest: str, offset: int, total: int, data: bytes) -> None:
        if not _is_digest(digest):
            raise InvalidArgumentError(f"PutPlan: {digest[:80]!r} is not a SHA-256 digest")
        if total > self._largest:
            raise ResourceExhaustedError(
                f"a plan of {total} bytes is larger than this dispatcher takes ({self._largest}); "
                "keep large arrays in files (from_tensor_slices of numpy.memmap, TFRecord, Parquet)"
            )
        if not 0 <= offset <= offset + len(data) <= total or total < 1:
            raise InvalidArgumentError(
                f"PutPlan: bytes {offset} to {offset + len(data)} are not part of {total}"
            )

    def _size(self, digest: str) -> int | None:
        """The size of a complete plan; None if it is not in the store. Needs `_lock`."""
        if digest not in self._sizes:
            with self._disk():
                size = self._storage.size(digest)
            if size is None:
                return None
            self._sizes[digest] = size
        return self._sizes[digest]

    def _find_upload(self, digest: str, total: int) -> _Upload:
        plan = self._uploads.pop(digest, None) or _Upload(total, 0, hashlib.sha256())
        if plan.total != total:
            self._uploads[digest] = plan
            raise InvalidArgumentError(
                f"PutPlan: plan {digest[:12]!r} has {plan.total} bytes, not {total}"
            )
        while len(self._uploads) >= _MOST_UPLOADS:
            self._drop(next(iter(self._uploads)))
        self._uploads[digest] = plan  # At the end: the most recently used.
        return plan

    def _append(self, digest: str, plan: _Upload, data: bytes) -> None:
        try:
            with self._disk():
                self._storage.write(digest, plan.size, plan.total, data)
        except OpError:
            self._drop(digest)
            raise
        plan.size += len(data)
        plan.hash.update(data)
        if plan.size == plan.total:
            self._complete(digest, plan)

    def _complete(self, digest: str, plan: _Upload) -> None:
        if plan.hash.hexdigest() != digest:
            self._drop(digest)
            raise DataLossError(
                f"plan {digest[:12]!r} arrived with other bytes than its digest says; send it again"
            )
        with self._disk():
            self._storage.keep(digest)
        del self._uploads[digest]
        self._sizes[digest] = plan.total

    def _drop(self, digest: str) -> None:
        self._uploads.pop(digest, None)
        self._storage.drop(digest)

    @contextmanager
    def _disk(self) -> Iterator[None]:
        """Raises penstock's errors for errors of the disk; clients retry while it is full."""
        try:
            with translate_errors(self._storage.folder, "dispatcher"):
                yield
        except ResourceExhaustedError as error:
            raise UnavailableError(f"{error.message}; free some space on that disk") from error

    def close(self) -> None:
        """Closes the files; later calls of `put` and `get` fail."""
        with self._lock:
            self._storage.close()


def _is_digest(digest: str) -> bool:
    return re.fullmatch(r"[0-9a-f]{64}", digest) is not None


class FolderStorage:
    """The bytes of plans, by digest: one file for each plan, which survives restarts.

    The parts of a plan are written in order. Files of incomplete plans are called `.part`. All
    methods raise OSError.
    """

    def __init__(self, folder: str) -> None:
        self.folder = folder
        os.makedirs(folder, mode=0o700, exist_ok=True)
        for name in os.listdir(folder):
            if name.endswith(".part"):
                os.unlink(os.path.join(folder, name))

    def size(self, digest: str) -> int | None:
        """The size of a complete plan of an earlier run, after a check of its digest; else None."""
        path = self._path(digest)
        if not os.path.exists(path):
            return None
        with open(path, "rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() == digest:
                return file.tell()
        os.unlink(path)  # Damaged: its client sends it again.
        return None

    def write(self, digest: str, offset: int, total: int, data: bytes) -> None:
        """Writes the bytes from `offset` on of a plan of `total` bytes."""
        with open(f"{self._path(digest)}.part", "ab" if offset else "wb") as file:
            file.write(data)
            file.flush()
            if offset + len(data) == total:
                os.fsync(file.fileno())

    def keep(self, digest: str) -> None:
        """Called once all bytes of a plan are written and its digest is right."""
        os.replace(f"{self._path(digest)}.part", self._path(digest))
        sync_folder(self.folder)

    def drop(self, digest: str) -> None:
        """Removes the parts of an incomplete plan."""
        with contextlib.suppress(OSError):
            os.unlink(f"{self._path(digest)}.part")

    def remove(self, digest: str) -> None:
        """Removes a complete plan, if it exists."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._path(digest))

    def digests(self) -> list[str]:
        """The digests of all complete plans."""
        return [name for name in os.listdir(self.folder) if not name.endswith(".part")]

    def read(self, digest: str, offset: int, count: int) -> bytes:
        """Up to `count` bytes of a complete plan."""
        with open(self._path(digest), "rb") as file:
            file.seek(offset)
            return file.read(count)

    def close(self) -> None:
        pass

    def _path(self, digest: str) -> str:
        return os.path.join(self.folder, digest)


class TemporaryStorage:
    """As `FolderStorage`: all plans in one file without a name, which the system removes with the
    process."""

    def __init__(self) -> None:
        self.folder = tempfile.gettempdir()
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 (until `close`)
        self._plans: dict[str, tuple[int, int]] = {}
        """The offset and size of each plan in the file."""

    def size(self, digest: str) -> int | None:
        return None

    def write(self, digest: str, offset: int, total: int, data: bytes) -> None:
        if digest not in self._plans:
            self._plans[digest] = self._find_gap(total), total
        place, rest = self._plans[digest][0] + offset, memoryview(data)
        while rest:
            written = os.pwrite(self._descriptor(), rest, place)
            place, rest = place + written, rest[written:]

    def keep(self, digest: str) -> None:
        pass

    def _find_gap(self, size: int) -> int:
        """The first offset where `size` bytes fit between or behind the plans."""
        end = 0
        for start, length in sorted(self._plans.values()):
            if start - end >= size:
                break
            end = start + length
        return end

    def drop(self, digest: str) -> None:
        self._plans.pop(digest, None)
        end = max((start + length for start, length in self._plans.values()), default=0)
        if os.fstat(self._descriptor()).st_size > end:
            os.truncate(self._descriptor(), end)

    def remove(self, digest: str) -> None:
        self.drop(digest)

    def digests(self) -> list[str]:
        return list(self._plans)

    def read(self, digest: str, offset: int, count: int) -> bytes:
        place, size = self._plans[digest]
        return os.pread(self._descriptor(), max(0, min(count, size - offset)), place + offset)

    def _descriptor(self) -> int:
        if self._file.closed:
            raise OSError(errno.EBADF, "the dispatcher was stopped")
        return self._file.fileno()

    def close(self) -> None:
        self._file.close()


_MOST_PLANS = 64
"""Decoded plans that are kept."""

Decode = Callable[[bytes, Resolve], Node]


def make_decoder(functions: str, modules: tuple[str, ...]) -> Decode:
    """Returns the function that decodes plans, by the worker's options `functions`, `modules`."""
    if functions == "by_reference":
        for name in modules:
            _check_module(name)
        return lambda data, resolve: decode_by_reference(data, modules, resolve)
    return decode


def _check_module(name: str) -> None:
    try:
        found = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        found = None
    if found is None:
        raise InvalidArgumentError(
            f"worker: there is no module {name!r} to take functions from; start it where the "
            "module can be imported, or set PYTHONPATH"
        )


class PlanCache:
    """Decoded plans by digest. Two threads that need the same plan fetch it once."""

    def __init__(self, call: Callable[[Request], Reply], decode: Decode, address: str) -> None:
        self._call = call
        self._decode = decode
        self._address = address
        self._lock = threading.Lock()
        """Guards the two fields below."""
        self._plans: OrderedDict[str, Node] = OrderedDict()
        self._fetching: dict[str, threading.Lock] = {}
        """Held by the thread that fetches the plan with this digest."""

    def get(self, digest: str) -> Node:
        """Returns the plan; raises an error that says why this worker cannot have it."""
        with self._lock:
            if (plan := self._find(digest)) is not None:
                return plan
            fetching = self._fetching.setdefault(digest, threading.Lock())
        with fetching:
            with self._lock:
                if (plan := self._find(digest)) is not None:
                    return plan
            try:
                plan = self._decode_bytes(self._fetch(digest))
                self._keep(digest, plan)
            finally:
                with self._lock:
                    self._fetching.pop(digest, None)
        return plan

    def _find(self, digest: str) -> Node | None:
        if digest in self._plans:
            self._plans.move_to_end(digest)
        return self._plans.get(digest)

    def _keep(self, digest: str, plan: Node) -> None:
        with self._lock:
            self._plans[digest] = plan
            while len(self._plans) > _MOST_PLANS:
                self._plans.popitem(last=False)

    def _fetch(self, digest: str) -> bytes:
        data = bytearray()
        while True:
            part = self._call(GetPlan(digest, len(data)))
            assert isinstance(part, GetPlanReply)
            data += part.data
            if len(data) >= part.total or not part.data or part.total > LARGEST_PLAN:
                break
        if hashlib.sha256(data).hexdigest() != digest:
            raise DataLossError(
                f"distribute: the {len(data)} bytes of the plan that the dispatcher gave to worker "
                f"{self._address} do not have the digest {digest[:12]}; register the dataset again"
            )
        return bytes(data)

    def _decode_bytes(self, data: bytes) -> Node:
        arrays = OpenArrays(lambda name: partial(fetch_array, self._call, name), unit=PART)
        try:
            plan = self._decode(split_array_names(data)[1], arrays.open)
            arrays.fill_hidden(plan)
            return plan
        except OpError as error:
            cause = error.__cause__
            if not isinstance(cause, ImportError | AttributeError):
                raise
            raise FailedPreconditionError(self._explain_import_error(cause)) from cause

    def _explain_import_error(self, cause: ImportError | AttributeError) -> str:
        if isinstance(cause, ModuleNotFoundError):
            return (
                f"distribute: worker {self._address} has no module {cause.name!r}, which this "
                "dataset needs; install it where the worker runs, or start the worker in a folder "
                f"or with a PYTHONPATH from which {cause.name!r} can be imported"
            )
        return (
            f"distribute: worker {self._address} has another version of a module that this "
            f"dataset needs ({cause}); install the same one where the worker runs"
        )


# Shared arrays between machines
#
# A client keeps its arrays, and the workers of its machine share their memory. It uploads a part
# when a worker of another machine wants it, and the dispatcher stores the part as long as a
# registered plan has the array. Only a client that registers a dataset for other clients uploads
# everything.

Call = Callable[[Request], Reply]
"""Calls the dispatcher."""

_AHEAD = 16
"""Parts behind the last part that a worker asked for, which clients send as well."""

_ARRAYS = b"penstock arrays "


def join_array_names(names: Iterable[str], plan: bytes) -> bytes:
    """The encoded plan behind a line with the names of its shared arrays, if it has any."""
    listed = ",".join(sorted(set(names))).encode()
    return _ARRAYS + listed + b"\n" + plan if listed else plan


def split_array_names(data: bytes) -> tuple[list[str], bytes]:
    """The names of the shared arrays of a plan, and the encoded plan."""
    if not data.startswith(_ARRAYS):
        return [], data
    line, _, plan = data.partition(b"\n")
    return line[len(_ARRAYS) :].decode().split(","), plan


def sync_folder(path: str) -> None:
    """Makes sure that renamed files keep their names after a power failure."""
    folder = os.open(path, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


class _StoredArray:
    """The parts of one array that have arrived, in a file without a name, or one at `path`.

    The file at `path` is called `.part` until all parts have arrived. The lock of `ArrayStore`
    guards all fields.
    """

    def __init__(self, now: float, path: str | None) -> None:
        self.total = 0
        self.parts = np.zeros(0, np.bool_)
        self.wanted: dict[int, None] = {}
        """Parts that workers have asked for, the earliest first."""
        self.asked, self.last_asked = False, 0
        self.heard = now
        """When a client last said that it has the array."""
        self._path = path
        self.file = self._open_file(path)

    def _open_file(self, path: str | None) -> IO[bytes]:
        if path is None:
            return tempfile.TemporaryFile()
        if not os.path.exists(path):
            return open(f"{path}.part", "w+b")
        self.set_total(os.path.getsize(path))
        self.parts[:] = True
        return open(path, "r+b")

    def set_total(self, total: int) -> None:
        if not self.total:
            self.total, self.parts = total, np.zeros(-(-total // PART), np.bool_)
        if total != self.total or total < 1:
            raise InvalidArgumentError(f"PutArray: the array has {self.total} bytes, not {total}")

    def write(self, offset: int, data: bytes) -> None:
        part, size = offset // PART, min(PART, self.total - offset)
        if offset % PART or not 0 <= part < len(self.parts) or len(data) != size:
            raise InvalidArgumentError(f"PutArray: {len(data)} bytes at {offset} are not a part")
        if not self.parts[part]:
            with translate_errors(tempfile.gettempdir(), "dispatcher"):
                os.pwrite(self.file.fileno(), data, offset)
                self.parts[part] = True
                self._keep_if_complete()
        self.wanted.pop(part, None)

    def _keep_if_complete(self) -> None:
        if self._path is not None and self.parts.all():
            os.fsync(self.file.fileno())
            os.replace(f"{self._path}.part", self._path)
            sync_folder(os.path.dirname(self._path))

    def next_wanted(self, everything: bool = False) -> int:
        """The offset of the part to send next; -1 if there is none.

        Once workers have requested a part, the parts behind it follow without a request. Every call
        moves the part that it returns to the end of the queue, so that several clients send
        different parts.
        """
        part = next(iter(self.wanted), -1)
        if part >= 0:
            self.wanted[part] = self.wanted.pop(part)
        elif self.asked:
            behind = self.parts[self.last_asked : self.last_asked + _AHEAD]
            part = self.last_asked + int(behind.argmin()) if not behind.all() else -1
        if part < 0 and everything and not self.parts.all():
            part = int(self.parts.argmin())
        return part * PART if part >= 0 else -1

    def read(self, offset: int) -> bytes:
        """The part at an offset; empty if it has not arrived."""
        self.last_asked = part = offset // PART
        self.asked = True
        if part < len(self.parts) and self.parts[part]:
            return os.pread(self.file.fileno(), PART, part * PART)
        self.wanted[part] = None
        return b""


class ArrayStore:
    """The arrays for which `is_known` returns True. Thread-safe.

    In `folder`, which is made if it does not exist, complete arrays survive restarts.
    """

    def __init__(
        self,
        is_known: Callable[[str], bool],
        now: Callable[[], float] = time.monotonic,
        folder: str | None = None,
    ) -> None:
        self._is_known, self._now, self._folder = is_known, now, folder
        self._lock = threading.Lock()
        self._arrays: dict[str, _StoredArray] = {}  #: guarded by _lock
        if folder is not None:
            with translate_errors(folder, "dispatcher"):
                os.makedirs(folder, mode=0o700, exist_ok=True)

    def put(self, name: str, total: int, offset: int, data: bytes, everything: bool = False) -> int:
        """Adds a part, unless `data` is empty; returns the offset of the part to send next.

        With `everything`, parts are sent that no worker has asked for, until the array is complete.
        """
        with self._lock:
            array = self._find(name)
            array.set_total(total)
            array.heard = self._now()
            if data:
                array.write(offset, data)
            return array.next_wanted(everything)

    def get(self, name: str, offset: int) -> bytes:
        """The part at an offset; empty if no client has sent it yet."""
        with self._lock:
            array = self._find(name)
            data = array.read(max(offset, 0))
            silence = self._now() - array.heard
        if not data and silence > timing.ARRAY_SILENCE:
            raise UnavailableError(
                f"distribute: no client that has array {name[:12]} of this dataset has been heard "
                f"of for {silence:.0f} s"
            )
        return data

    def _find(self, name: str) -> _StoredArray:
        if name not in self._arrays:
            if not re.fullmatch(r"[0-9a-f]{32,64}", name) or not self._is_known(name):
                raise NotFoundError(f"array {name[:12]!r} is in no dataset of this dispatcher")
            with translate_errors(self._folder or tempfile.gettempdir(), "dispatcher"):
                path = None if self._folder is None else os.path.join(self._folder, name)
                self._arrays[name] = _StoredArray(self._now(), path)
        return self._arrays[name]

    def tidy(self) -> None:
        """Removes the arrays that no plan has any more."""
        with self._lock:
            for name in [name for name in self._arrays if not self._is_known(name)]:
                self._arrays.pop(name).file.close()
            for file in os.listdir(self._folder) if self._folder is not None else ():
                if not self._is_known(file.removesuffix(".part")):
                    os.unlink(os.path.join(self._folder or "", file))

    def close(self) -> None:
        """Closes the files; later calls fail."""
        with self._lock:
            for array in self._arrays.values():
                array.file.close()
            self._arrays.clear()
            self._is_known = lambda name: False


def fetch_array(call: Call, name: str, start: int, stop: int) -> bytes:
    """The bytes of an array from the dispatcher; blocks until a client has sent them."""
    first = start - start % PART
    parts = [_fetch_part(call, name, offset) for offset in range(first, stop, PART)]
    return b"".join(parts)[start - first : stop - first]


def _fetch_part(call: Call, name: str, offset: int) -> bytes:
    while True:
        reply = call(GetArray(name, offset))
        assert isinstance(reply, GetArrayReply)
        if reply.data:
            return reply.data
        time.sleep(timing.ARRAY_PAUSE)


class ArrayUploads:
    """Sends parts of the arrays of one stream, in a thread, until it is closed.

    The dispatcher cannot call a client, so the client asks which parts workers want. While they
    want none, it asks at growing intervals.
    """

    def __init__(self, call: Call, offers: Sequence[ArrayOffer]) -> None:
        self._call, self._offers = call, offers
        self._closed = False  # Set by `close` in any thread; a stale value costs one more round.
        self._woken = threading.Event()
        if offers:
            MACHINE.start(self._run, "penstock-uploads")

    def hurry(self) -> None:
        """Asks at once: a worker of another machine is about to need an array."""
        self._woken.set()

    def close(self) -> None:
        """May be repeated."""
        self._closed = True
        self._woken.set()

    def _run(self) -> None:
        pause = timing.ARRAY_PAUSE
        while not self._closed:
            sent = [self._send_wanted(offer) for offer in self._offers]
            pause = timing.ARRAY_PAUSE if any(sent) else min(2 * pause, timing.ARRAY_QUESTION)
            if self._woken.wait(pause):
                pause = timing.ARRAY_PAUSE
                self._woken.clear()

    def _send_wanted(self, offer: ArrayOffer) -> bool:
        """Sends the parts of one array that workers want; returns whether there were any."""
        sent = False
        # The dispatcher may be gone, or restarted without the dataset: `_run` asks again later.
        with contextlib.suppress(OpError):
            for _ in _send_parts(self._call, offer):
                sent = True
                if self._closed:
                    break
        return sent


def send_everything(call: Call, offer: ArrayOffer) -> None:
    """Sends the dispatcher all parts of an array that it does not have."""
    for _ in _send_parts(call, offer, everything=True):
        pass


def _send_parts(call: Call, offer: ArrayOffer, everything: bool = False) -> Iterator[int]:
    """Sends parts as long as workers want any; yields the offset of each."""
    request = PutArray(offer.reference.name, offer.reference.nbytes, everything=everything)
    while (wanted := _find_wanted(call, request)) >= 0:
        part = bytes(offer.read(wanted, min(wanted + PART, request.total)))
        request = msgspec.structs.replace(request, offset=wanted, data=part)
        yield wanted


def _find_wanted(call: Call, request: PutArray) -> int:
    """Sends a part, if the request has one; returns the offset of the part to send next, or -1."""
    reply = call(request)
    assert isinstance(reply, PutArrayReply)
    return reply.wanted
