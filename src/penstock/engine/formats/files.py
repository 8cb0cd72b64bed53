"""Paths to bytes: opening, creating and finding files, on this machine or behind any fsspec URL.

A path with `://` in it is opened by fsspec, every other path on the local disk. All errors leave
this module as one of `penstock.errors`, with the path and the call of the user.
"""

from __future__ import annotations

import errno
import functools
import glob
import io
import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import BinaryIO, cast

from penstock.engine.formats.inflate import WINDOW_BITS, InflatedFile
from penstock.engine.formats.remote_files import (
    FileVersion,
    connect,
    describe,
    fetch_whole,
    open_remote,
    version_in,
)
from penstock.engine.formats.remote_requests import ChangedFileError, as_os_error
from penstock.errors import (
    DeadlineExceededError,
    FailedPreconditionError,
    InvalidArgumentError,
    InvalidTypeError,
    NotFoundError,
    OpError,
    PermissionDeniedError,
    ResourceExhaustedError,
    UnavailableError,
    UnimplementedError,
    UnknownError,
)

Path = str | bytes | os.PathLike[str] | os.PathLike[bytes]

DEFAULT_BLOCK = 256 * 1024
_WRITE_BUFFER = 1024 * 1024


def as_path(path: Path, call: str) -> str:
    """The path as text; bytes that are not UTF-8 become the same bytes again in `os.fsencode`."""
    try:
        return os.fsdecode(path)
    except TypeError:
        raise InvalidTypeError(
            f"{call}: a path must be str, bytes or os.PathLike, got {path!r}"
        ) from None


def block_size(buffer_size: int | None, call: str) -> int:
    """How many bytes to read at once; None and 0 mean `DEFAULT_BLOCK`."""
    if buffer_size is not None and buffer_size < 0:
        raise InvalidArgumentError(f"{call}: buffer_size must be at least 0, got {buffer_size}")
    return buffer_size or DEFAULT_BLOCK


def open_bytes(
    path: Path,
    compression: str | None = None,
    buffer_size: int | None = None,
    call: str = "open_bytes",
) -> BinaryIO:
    """The uncompressed bytes of a file, from its start.

    `read(n)` may give fewer than n bytes; only `b""` is the end.
    """
    name = as_path(path, call)
    block = block_size(buffer_size, call)
    compression = check_compression(compression, call)
    with translate_errors(name, call):
        file: BinaryIO = open_remote(name) if "://" in name else io.FileIO(name)
    if not compression:
        return file
    return cast(BinaryIO, InflatedFile(file, compression, name, block, call))


def create_bytes(path: Path, call: str) -> BinaryIO:
    """A new, empty file to write to; it replaces an existing file."""
    name = as_path(path, call)
    with translate_write_errors(name, call):
        return _create_remote(name) if "://" in name else open(name, "wb", _WRITE_BUFFER)


def read_file(filename: Path) -> bytes:
    """The bytes of a whole file.

    Args:
      filename: A local path or an fsspec URL.

    >>> import os, tempfile
    >>> path = os.path.join(tempfile.mkdtemp(), "new", "file")
    >>> write_file(path, b"text")
    >>> read_file(path)
    b'text'
    """
    call = "io.read_file"
    path = as_path(filename, call)
    with translate_errors(path, call):
        if "://" in path:
            return fetch_whole(path)
        with open(path, "rb", buffering=0) as file:
            return file.read()


def write_file(filename: Path, contents: bytes | str) -> None:
    """Writes a whole file, which is replaced if it exists; makes the folders on its path.

    A local file is complete or not there: the bytes go to a new file, which then gets the name.

    Args:
      filename: A local path or an fsspec URL.
      contents: The bytes; text is encoded as UTF-8.

    >>> import os, tempfile
    >>> path = os.path.join(tempfile.mkdtemp(), "folder", "words.txt")
    >>> write_file(path, "one two")
    >>> read_file(path)
    b'one two'
    """
    call = "io.write_file"
    path = as_path(filename, call)
    if not isinstance(contents, bytes | str):
        raise InvalidTypeError(f"{call}: contents must be bytes or text, got {type(contents)}")
    data = contents.encode() if isinstance(contents, str) else contents
    with translate_errors(path, call):
        if "://" in path:
            with _create_remote(path) as remote:
                remote.write(data)
            return
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
        _replace_local(path, data)


def replace_file(path: str, data: bytes, call: str) -> None:
    """Writes a small file: its readers find the old bytes or the new ones, and never some."""
    with translate_write_errors(path, call):
        if "://" in path:
            system, inside = connect(path)
            system.pipe_file(inside, data)
        else:
            _replace_local(path, data)


def _replace_local(path: str, data: bytes) -> None:
    partial = name_partial(path)
    try:
        with open(partial, "wb") as file:
            file.write(data)
        os.replace(partial, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(partial)
        raise


def name_partial(path: str) -> str:
    """The name of a file that no reader looks for, and that is renamed when it is complete."""
    return f"{path}.{secrets.token_hex(8)}.partial"


def read_small(path: str, call: str) -> bytes | None:
    """All bytes of a file; None if it does not exist."""
    try:
        with translate_errors(path, call), open_bytes(path, call=call) as file:
            return file.read()
    except NotFoundError:
        return None


def join(path: str, name: str) -> str:
    return f"{path.rstrip('/')}/{name}" if path else name


def make_folder(path: str, call: str) -> None:
    """Makes a folder, with all folders on its path, if it does not exist."""
    with translate_write_errors(path, call):
        if "://" in path:
            system, inside = connect(path)
            system.makedirs(inside, exist_ok=True)
        else:
            os.makedirs(path, exist_ok=True)


def remove_folder(path: str) -> None:
    """Removes a folder with its content; does nothing if it does not exist."""
    if "://" not in path:
        shutil.rmtree(path, ignore_errors=True)
        return
    with suppress(OSError):
        system, inside = connect(path)
        system.rm(inside, recursive=True)


def _create_remote(url: str) -> BinaryIO:
    import fsspec

    return cast(BinaryIO, fsspec.open(url, "wb").open())


def check_compression(compression: str | None, call: str) -> str:
    """`compression` itself, "" for None."""
    if compression and compression not in tuple(WINDOW_BITS):
        raise InvalidArgumentError(
            f'{call}: compression_type must be "GZIP", "ZLIB", "" or None, got {compression!r}'
        )
    return compression or ""


def read_exactly(file: BinaryIO, start: int, count: int) -> bytes:
    """The `count` bytes from `start` on; EOFError if the file ends before."""
    file.seek(start)
    parts, missing = [], count
    while missing and (part := file.read(missing)):
        parts.append(part)
        missing -= len(part)
    if missing:
        raise EOFError(f"the file ends {missing} bytes too early")
    return b"".join(parts)


@contextmanager
def close_on_error(file: BinaryIO) -> Iterator[None]:
    try:
        yield
    except BaseException:
        file.close()
        raise


def size_of(file: BinaryIO) -> int | None:
    """The length in bytes, or None if only reading to the end would show it. Moves the file."""
    try:
        return file.seek(0, os.SEEK_END) if file.seekable() else None
    except ValueError:  # A stream that finds out too late that it cannot seek.
        return None


def resolve_paths(paths: Path | Iterable[Path], call: str) -> list[str]:
    """The files that paths and patterns name, in the order given; those of a pattern sorted.

    `{a,b}` and `{00..11}` are expanded first. Local paths become absolute.
    """
    if isinstance(paths, str | bytes | os.PathLike):
        paths = [paths]
    names = [name for path in paths for name in expand_braces(as_path(path, call))]
    found = [path for name in names for path in _find_files(name, call)]
    if not found:
        raise InvalidArgumentError(f"{call}: needs at least one path, got an empty list")
    absolute = functools.cache(os.path.abspath)  # Many files are in few folders.
    return [path if "://" in path else _absolute_path(path, absolute) for path in found]


def _absolute_path(path: str, absolute_folder: Callable[[str], str]) -> str:
    folder, name = os.path.split(path)
    if name in ("", ".", ".."):
        return os.path.abspath(path)
    return os.path.join(absolute_folder(folder), name)


_BRACES = re.compile(r"\{([^{}]*(?:,|\.\.)[^{}]*)\}")


def expand_braces(pattern: str) -> list[str]:
    """All names that a pattern with `{a,b}` or `{0..9}` means.

    >>> expand_braces("{a,b}-{08..10}")
    ['a-08', 'a-09', 'a-10', 'b-08', 'b-09', 'b-10']
    """
    found = _BRACES.search(pattern)
    if found is None:
        return [pattern]
    before, after = pattern[: found.start()], pattern[found.end() :]
    ends = expand_braces(after)
    return [before + choice + end for choice in _choices(found[1]) for end in ends]


def _choices(inside: str) -> list[str]:
    numbers = re.fullmatch(r"(\d+)\.\.(\d+)", inside)
    if numbers is None:
        return inside.split(",")
    width = len(numbers[1]) if numbers[1].startswith("0") else 0
    return [f"{number:0{width}}" for number in range(int(numbers[1]), int(numbers[2]) + 1)]


def _find_files(name: str, call: str) -> list[str]:
    if not _is_pattern(name) or ("://" not in name and os.path.exists(name)):
        if "://" not in name and os.path.isdir(name):
            raise FailedPreconditionError(
                f"{call}: {name!r} is a folder; name the files in it, as {name.rstrip('/')}/*"
            )
        return [name]
    return expand(name, call)


def _is_pattern(name: str) -> bool:
    """Whether a name has wildcards. In a web address, a query follows `?`."""
    if name.startswith(("http://", "https://")):
        name = name.partition("?")[0]
    return re.search(r"[*?\[]", name) is not None


def version_of(path: str, call: str) -> FileVersion:
    with translate_errors(path, call):
        if "://" not in path:
            found = os.stat(path)
            return FileVersion(found.st_size, f"{found.st_mtime_ns} {os.uname().nodename}")
        return version_in(describe(*connect(path)))


def has_changed(path: str, known: FileVersion, now: FileVersion) -> bool:
    """Whether a file is another one than it was. Copies on other machines have their own times."""
    if known.size != now.size:
        return True
    same_clock = "://" in path or known.modified.split()[1:] == now.modified.split()[1:]
    return bool(known.modified) and same_clock and known.modified != now.modified


def expand(patterns: Path | Iterable[Path], call: str = "Dataset.list_files") -> list[str]:
    """All files that match any of the patterns, sorted; a file that matches two comes twice.

    `*`, `?` and `[...]` stay within one path component and match hidden files too. The character
    behind a backslash is literal.
    """
    if isinstance(patterns, str | bytes | os.PathLike):
        patterns = [patterns]
    names = [as_path(pattern, call) for pattern in patterns]
    found = [path for name in names for path in find_matches(name, call)]
    if not found:
        wanted = ", ".join(map(repr, names)) or "an empty list of patterns"
        remedy = "check the pattern and the working directory"
        if any(map(_BRACES.search, names)):
            remedy = "braces are taken literally: write a list of patterns, one for each choice"
        raise InvalidArgumentError(f"{call}: no file matches {wanted}; {remedy}")
    return sorted(found, key=os.fsencode)


def find_matches(pattern: str, call: str) -> list[str]:
    """The files that match one pattern, in any order."""
    if "://" in pattern:
        with translate_errors(pattern, call):
            return find_remote(pattern)
    if not re.search(r"[*?\[\\]", pattern):
        return [pattern] if os.path.exists(pattern) else []
    # A wildcard in the first component: the results begin with "./", as TensorFlow's do.
    fixed = re.split(r"[*?\[\\]", pattern, maxsplit=1)[0]
    rooted = pattern if "/" in fixed else "./" + pattern
    return glob.glob(_python_pattern(rooted).rstrip("/"), include_hidden=True)


def list_folder(path: str, call: str) -> list[str]:
    """All files below a folder, by their paths from there, with `/` between folders."""
    with translate_errors(path, call):
        if "://" not in path:
            found = []
            for folder, _, names in os.walk(path, onerror=_raise, followlinks=True):
                below = os.path.relpath(folder, path)
                found += [os.path.normpath(os.path.join(below, name)) for name in names]
            return found
        system, inside = connect(path)
        root = inside.rstrip("/") + "/"
        names = system.find(inside)
        if not names:
            raise FileNotFoundError(path)
        return [name.removeprefix(root) for name in names]


def _raise(error: OSError) -> None:
    raise error


def _python_pattern(pattern: str) -> str:
    """What fnmatch(3) writes `\\*` and `[^a]`, Python's glob writes `[*]` and `[!a]`."""
    pattern = re.sub(r"\\(.)", lambda escaped: glob.escape(escaped[1]), pattern)
    return pattern.replace("[^", "[!")


def find_remote(pattern: str) -> list[str]:
    """The files behind a URL that match a pattern."""
    system, inside = connect(pattern)
    before, here, after = pattern.partition(inside)
    names = system.glob(inside)
    if not here:
        return [system.unstrip_protocol(name) for name in names]
    # Spelled as the user did: `memory://a/*` gives `memory://a/b`, a `zip://*::...` its archive.
    return [f"{before}{name}{after}" for name in names]


class translate_errors:  # noqa: N801  # It is used like a function.
    """Turns exceptions of the operating system and of fsspec into `penstock.errors`.

    Not a generator: it would be in the traceback of what it caught, and keep all that callers hold.
    """

    def __init__(self, path: str, call: str) -> None:
        self._path, self._call = path, call

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: object, caught: BaseException | None, trace: object) -> None:
        if not isinstance(caught, Exception) or isinstance(caught, OpError):
            return
        path, call, error = self._path, self._call, as_os_error(caught)
        if not isinstance(error, OSError | ValueError | ImportError):
            return
        if getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT):
            raise ResourceExhaustedError(f"{call}: no space is left for {path!r}") from caught
        kind, problem = next(row[1:] for row in _KINDS if isinstance(error, row[0]))
        remedy = _other_name(path) if kind is NotFoundError else ""
        raise kind(f"{call}: {path!r} {problem.format(error=error)}{remedy}") from caught


def _other_name(path: str) -> str:
    """What to write if a path that does not exist was meant to be another one."""
    if "://" not in path and re.search(r"(^|/)~", path):
        return "; write out the home folder that ~ stands for, as os.path.expanduser does"
    if _BRACES.search(path):
        return (
            "; its braces are taken literally: write a list of the names that they stand for, or "
            "a pattern with * for Dataset.list_files"
        )
    if _is_pattern(path):
        return "; it looks like a pattern, whose files Dataset.list_files finds"
    return ""


@contextmanager
def translate_write_errors(path: str, call: str) -> Iterator[None]:
    """As `translate_errors`, with a remedy for a full disk and for a folder that is missing."""
    with translate_errors(path, call):
        try:
            yield
        except FileNotFoundError as error:
            raise NotFoundError(
                f"{call}: the folder of {path!r} does not exist; make it first, as os.makedirs does"
            ) from error
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            raise ResourceExhaustedError(
                f"{call}: no space is left for {path!r}; free some, or name a place on another "
                "disk (unfinished files have been removed)"
            ) from error


_KINDS: tuple[tuple[type[Exception], type[OpError], str], ...] = (
    (ChangedFileError, FailedPreconditionError, "{error}"),
    (FileNotFoundError, NotFoundError, "does not exist"),
    (FileExistsError, FailedPreconditionError, "exists already; delete it, or name another path"),
    (IsADirectoryError, FailedPreconditionError, "is a directory; name the files in it"),
    (NotADirectoryError, FailedPreconditionError, "leads through a file, not a directory"),
    (PermissionError, PermissionDeniedError, "may not be opened by this user"),
    (TimeoutError, DeadlineExceededError, "took too long to answer ({error})"),
    (ConnectionError, UnavailableError, "cannot be reached ({error})"),
    (OSError, UnknownError, "failed: {error}"),
    (
        ImportError,
        UnimplementedError,
        'needs another package ({error}); for http and s3: pip install "penstock[remote]"',
    ),
    (ValueError, InvalidArgumentError, "cannot be opened: {error}"),
)
