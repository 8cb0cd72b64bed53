"""Every exception that penstock raises on purpose, as one tree.

Each class also derives from a builtin, so `except ValueError` keeps working.
A message reads: `<call as the user wrote it>: <what is wrong, with the value>; <what to do>`.

    OpError
    ├── InvalidArgumentError   (ValueError)         a value that cannot be right
    ├── InvalidTypeError       (TypeError)          a value of the wrong type
    ├── OutOfRangeError        (IndexError)         past the end
    ├── NotFoundError          (FileNotFoundError)  no such file, job, dataset
    ├── AlreadyExistsError     (FileExistsError)    another process or file has the name
    ├── FailedPreconditionError(RuntimeError)       right call, wrong moment
    ├── DataLossError          (OSError)            damaged or truncated data
    ├── ResourceExhaustedError (MemoryError)        memory, disk or quota
    ├── PermissionDeniedError  (PermissionError)
    ├── UnauthenticatedError   (PermissionError)
    ├── DeadlineExceededError  (TimeoutError)
    ├── UnavailableError       (ConnectionError)    no answer, or not installed
    ├── CancelledError         (RuntimeError)
    ├── AbortedError           (RuntimeError)
    ├── UnimplementedError     (NotImplementedError)
    ├── InternalError          (RuntimeError)       a fault of ours
    └── UnknownError           (RuntimeError)       raised inside a user's function

Subclasses that are not in `__all__` exist only to derive from a second builtin, as TensorFlow's
error at the same place does: catch `InvalidArgumentError`, `InvalidTypeError` or the builtin.
"""

import typing
from collections import abc

from penstock.missing_names import refuse_names

__all__ = [
    "OpError",
    "InvalidArgumentError",
    "InvalidTypeError",
    "OutOfRangeError",
    "NotFoundError",
    "AlreadyExistsError",
    "FailedPreconditionError",
    "DataLossError",
    "ResourceExhaustedError",
    "PermissionDeniedError",
    "UnauthenticatedError",
    "DeadlineExceededError",
    "UnavailableError",
    "CancelledError",
    "AbortedError",
    "UnimplementedError",
    "InternalError",
    "UnknownError",
]


_HERE = ("element", "counted")
"""Attributes of an error that do not travel."""


class OpError(Exception):
    """The root of the tree.

    >>> import penstock
    >>> try:
    ...     penstock.data.Dataset.range(3).batch(0)
    ... except ValueError as error:
    ...     print(type(error).__name__, "of", error.message.partition(":")[0])
    InvalidArgumentError of Dataset.batch
    """

    takes_element = True
    """Whether the error takes the place of an element, so that `ignore_errors` drops both. Else
    the stream itself has failed, and `ignore_errors` raises the error."""

    error_code = 2
    """The number of the kind of error, as in TensorFlow; `UnknownError` has this one."""

    node_def: None = None
    op: None = None

    def __init__(
        self,
        *args: object,
        node_def: None = None,
        op: None = None,
        message: str | None = None,
        error_code: int | None = None,
    ) -> None:
        # TensorFlow's arguments are (node_def, op, message); an `OpError` has a code behind them.
        if len(args) >= 2 and args[0] is None and args[1] is None:
            if len(args) > 3 and type(self) is OpError and isinstance(args[3], int):
                error_code = args[3]
            args = args[2:3]
        if error_code is not None:
            self.error_code = error_code
        # torch's worker processes raise an error again with `message` as a keyword.
        super().__init__(*(args if message is None else (message,)))

    find_origin: abc.Callable[[], str] | None = None
    """Says where the element comes from that the error is about: "comes from ...".

    It may read files again, so it is called only when the text of the error is needed.
    """

    element: typing.Any = None
    """The element that a function failed on, if it failed in this process."""

    counted: tuple[typing.Any, int] | None = None
    """The operator whose function failed, and the number of the element as that operator counts,
    which is in the text; only in the process in which the operator runs."""

    @property
    def message(self) -> str:
        """The text of the error."""
        if (find := self.find_origin) is not None:
            self.find_origin = None
            origin = find()
            # A reader of files may have written the line and the file already.
            parts = origin.removeprefix("comes from ").split(" of ", 1)
            if not all(part in self.message for part in parts):
                self.args = (f"{self.message}; the element {origin}",)
        return str(self.args[0]) if self.args else ""

    def __reduce__(self) -> typing.Any:
        if self.find_origin is not None and self.message:
            del self.find_origin  # It is part of the message now.
        kept = {name: value for name, value in vars(self).items() if name not in _HERE}
        return type(self), self.args, kept

    def __str__(self) -> str:
        return self.message


class InvalidArgumentError(OpError, ValueError):
    """A value that cannot be right.

    >>> import penstock
    >>> penstock.data.Dataset.range(3).batch(0)
    Traceback (most recent call last):
        ...
    penstock.errors.InvalidArgumentError: Dataset.batch: batch_size must be at least 1, got 0
    """

    error_code = 3


class DisagreementError(InvalidArgumentError, AssertionError):
    """Values that may each be right, but not together."""


class UnbatchedError(InvalidArgumentError, IndexError):
    """Single values where batches are needed."""


class InvalidTypeError(OpError, TypeError):
    """A value of the wrong type.

    >>> import penstock
    >>> penstock.data.Dataset.range(3).batch("two")
    Traceback (most recent call last):
        ...
    penstock.errors.InvalidTypeError: Dataset.batch: batch_size must be an integer, got 'two' (str)
    """

    error_code = 3


class NoSuchEntryError(InvalidArgumentError, IndexError):
    """An index out of range."""


class UnfitServerError(InvalidArgumentError, RuntimeError):
    """A value that a server cannot be started with."""


class UnfitTypeError(InvalidArgumentError, InvalidTypeError):
    """A value of the wrong type, where TensorFlow raises a ValueError at some places."""


class NotADatasetError(InvalidTypeError, AttributeError):
    """A value that is no dataset."""


class NotAConfigError(InvalidTypeError, AttributeError):
    """A value that is no config of a server or a cache."""


class OutOfRangeError(OpError, IndexError):
    """Past the end of the data.

    >>> import penstock
    >>> penstock.data.Dataset.range(3)[7]
    Traceback (most recent call last):
        ...
    penstock.errors.OutOfRangeError: Dataset[7]: there are 3 elements
    """

    error_code = 11


class NotFoundError(OpError, FileNotFoundError):
    """No such file, job or dataset.

    >>> import penstock
    >>> list(penstock.data.TextLineDataset("/no/such/file"))
    Traceback (most recent call last):
        ...
    penstock.errors.NotFoundError: TextLineDataset: '/no/such/file' does not exist
    """

    error_code = 5


class AlreadyExistsError(OpError, FileExistsError):
    """Another process or file has this name or port.

    >>> import penstock
    >>> service = penstock.data.experimental.service
    >>> with service.DispatchServer() as dispatcher:
    ...     port = int(dispatcher.target.rpartition(":")[2])
    ...     try:
    ...         service.DispatchServer(service.DispatcherConfig(port=port))
    ...     except FileExistsError:
    ...         print("the port is in use")
    the port is in use
    """

    error_code = 6


class FailedPreconditionError(OpError, RuntimeError):
    """The right call at the wrong moment.

    >>> import penstock
    >>> strategy = penstock.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    >>> def step():
    ...     with strategy.scope():
    ...         pass
    >>> try:
    ...     strategy.run(step)
    ... except RuntimeError as error:
    ...     print(error.message.split(";")[0])
    Strategy.scope: called inside Strategy.run, as replica 0
    """

    error_code = 9


class DataLossError(OpError, OSError):
    """Damaged or truncated data.

    >>> import penstock, tempfile
    >>> with tempfile.NamedTemporaryFile() as file:
    ...     _ = file.write(b"this is no record")
    ...     file.flush()
    ...     try:
    ...         list(penstock.data.TFRecordDataset(file.name))
    ...     except OSError:
    ...         print("damaged")
    damaged
    """

    error_code = 15


class ResourceExhaustedError(OpError, MemoryError):
    """Memory, disk or a quota is used up.

    >>> import penstock
    >>> def fail(x):
    ...     raise MemoryError("too large")
    >>> try:
    ...     list(penstock.data.Dataset.range(1).map(fail))
    ... except MemoryError as error:
    ...     print(error.message.rpartition(": ")[2])
    too large
    """

    error_code = 8


class PermissionDeniedError(OpError, PermissionError):
    """The peer is authenticated, but not allowed to do this.

    >>> issubclass(PermissionDeniedError, PermissionError)
    True
    """

    error_code = 7


class UnauthenticatedError(OpError, PermissionError):
    """The peer is not authenticated.

    >>> import penstock
    >>> service = penstock.data.experimental.service
    >>> with service.DispatchServer(service.DispatcherConfig(token="a" * 32)) as dispatcher:
    ...     try:
    ...         service.status(dispatcher.target)
    ...     except PermissionError as error:
    ...         print("this program has another token")
    this program has another token
    """

    error_code = 16


class DeadlineExceededError(OpError, TimeoutError):
    """A time limit has passed.

    >>> issubclass(DeadlineExceededError, TimeoutError)
    True
    """

    error_code = 4


class UnavailableError(OpError, ConnectionError):
    """A server does not answer, or a package is not installed.

    >>> issubclass(UnavailableError, ConnectionError)
    True
    """

    error_code = 14


class CancelledError(OpError, RuntimeError):
    """Stopped by its caller.

    >>> issubclass(CancelledError, RuntimeError)
    True
    """

    error_code = 1


class AbortedError(OpError, RuntimeError):
    """Stopped by a conflict.

    >>> issubclass(AbortedError, RuntimeError)
    True
    """

    error_code = 10


class UnimplementedError(OpError, NotImplementedError):
    """This plan or device cannot do that.

    >>> import penstock
    >>> cpu = penstock.config.PhysicalDevice("/physical_device:GPU:0", "GPU")
    >>> try:
    ...     penstock.config.set_logical_device_configuration(cpu, [])
    ... except NotImplementedError as error:
    ...     print(error.message.partition(": ")[2].partition(",")[0])
    only the CPU can be divided into logical devices
    """

    error_code = 12


class InternalError(OpError, RuntimeError):
    """A fault of penstock itself.

    >>> issubclass(InternalError, RuntimeError)
    True
    """

    error_code = 13


class UnknownError(OpError, RuntimeError):
    """Something else went wrong inside a user's function.

    >>> import penstock
    >>> def fail(x):
    ...     raise KeyError("name")
    >>> try:
    ...     list(penstock.data.Dataset.range(1).map(fail))
    ... except RuntimeError as error:
    ...     print(repr(error.__cause__))
    KeyError('name')
    """


def kind_of(cause: BaseException) -> type[OpError]:
    """The class that reports an exception of a user's function."""
    for kind, builtins in _KINDS:
        if isinstance(cause, builtins):
            return type(cause) if isinstance(cause, OpError) else kind
    return UnknownError


_KINDS: tuple[tuple[type[OpError], type[BaseException] | tuple[type[BaseException], ...]], ...] = (
    (OpError, OpError),
    (NotFoundError, FileNotFoundError),
    (ResourceExhaustedError, MemoryError),
    (UnimplementedError, NotImplementedError),
    (UnfitTypeError, TypeError),
    (InvalidArgumentError, (ValueError, StopIteration)),
)


if not typing.TYPE_CHECKING:  # A type checker would take any name.
    __getattr__ = refuse_names("errors", __all__)
