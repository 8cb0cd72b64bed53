"""Every exception that penstock raises on purpose, as one tree.

Each class is one of ours *and* a builtin, so `except ValueError` keeps working.
A message reads: `<call as the user wrote it>: <what is wrong, with the value>; <what to do>`.

    OpError
    ├── InvalidArgumentError   (ValueError)         a value that cannot be right
    │   ├── DisagreementError  (AssertionError)     values that cannot be right together
    │   ├── UnbatchedError     (IndexError)         single values where batches must stand
    │   ├── NoSuchEntryError   (IndexError)         an index that leads nowhere
    │   ├── UnfitServerError   (RuntimeError)       what a server cannot be started with
    │   └── UnfitTypeError     (InvalidTypeError)   a value of a type that cannot be used so
    ├── InvalidTypeError       (TypeError)          a value of the wrong type
    │   ├── NotADatasetError   (AttributeError)     something else where a dataset must stand
    │   └── NotAConfigError    (AttributeError)     something else where a config must stand
    ├── OutOfRangeError        (IndexError)         past the end
    ├── NotFoundError          (FileNotFoundError)  no such file, job, dataset
    ├── AlreadyExistsError     (FileExistsError)    somebody else holds it
    ├── FailedPreconditionError(RuntimeError)       right call, wrong moment
    ├── DataLossError          (OSError)            damaged or truncated data
    ├── ResourceExhaustedError (MemoryError)        memory, disk or quota
    ├── PermissionDeniedError  (PermissionError)
    ├── UnauthenticatedError   (PermissionError)
    ├── DeadlineExceededError  (TimeoutError)
    ├── UnavailableError       (ConnectionError)    nobody answers
    ├── CancelledError         (RuntimeError)
    ├── AbortedError           (RuntimeError)
    ├── UnimplementedError     (NotImplementedError)
    ├── InternalError          (RuntimeError)       a fault of ours
    └── UnknownError           (RuntimeError)       raised inside a user's function
"""


class OpError(Exception):
    """The root of the tree."""

    def __init__(self, *args: object, message: str | None = None) -> None:
        # By its name is how torch's worker processes pass on a message with a class that has one.
        super().__init__(*(args if message is None else (message,)))

    @property
    def message(self) -> str:
        """The text, without Python's decoration."""
        return str(self.args[0]) if self.args else ""

    def __str__(self) -> str:
        return self.message


class InvalidArgumentError(OpError, ValueError):
    """A value that cannot be right."""


class DisagreementError(InvalidArgumentError, AssertionError):
    """Values that may each be right, but not together."""


class UnbatchedError(InvalidArgumentError, IndexError):
    """Single values stand where batches must."""


class InvalidTypeError(OpError, TypeError):
    """A value of the wrong type."""


class NoSuchEntryError(InvalidArgumentError, IndexError):
    """An index leads nowhere."""


class UnfitServerError(InvalidArgumentError, RuntimeError):
    """What a server cannot be started with."""


class UnfitTypeError(InvalidArgumentError, InvalidTypeError):
    """A value of a type that cannot be used so: wrong as a value, and as a type."""


class NotADatasetError(InvalidTypeError, AttributeError):
    """Something else stands where a dataset must."""


class NotAConfigError(InvalidTypeError, AttributeError):
    """Something else stands where the config of a server or a cache must."""


class OutOfRangeError(OpError, IndexError):
    """Past the end of the data."""


class NotFoundError(OpError, FileNotFoundError):
    """No such file, job or dataset."""


class AlreadyExistsError(OpError, FileExistsError):
    """Somebody else holds it already."""


class FailedPreconditionError(OpError, RuntimeError):
    """The right call at the wrong moment."""


class DataLossError(OpError, OSError):
    """Damaged or truncated data."""


class ResourceExhaustedError(OpError, MemoryError):
    """Memory, disk or a quota is used up."""


class PermissionDeniedError(OpError, PermissionError):
    """Known, but not allowed."""


class UnauthenticatedError(OpError, PermissionError):
    """Not known."""


class DeadlineExceededError(OpError, TimeoutError):
    """It took too long."""


class UnavailableError(OpError, ConnectionError):
    """Nobody answers."""


class CancelledError(OpError, RuntimeError):
    """Stopped by its owner."""


class AbortedError(OpError, RuntimeError):
    """Stopped by a conflict."""


class UnimplementedError(OpError, NotImplementedError):
    """This plan or device cannot do that."""


class InternalError(OpError, RuntimeError):
    """A fault of penstock itself."""


class UnknownError(OpError, RuntimeError):
    """Something else went wrong inside a user's function."""


def kind_of(cause: BaseException) -> type[OpError]:
    """The class under which an exception of a user's function is reported."""
    for kind, builtins in _KINDS:
        if isinstance(cause, builtins):
            return type(cause) if isinstance(cause, OpError) else kind
    return UnknownError


_KINDS: tuple[tuple[type[OpError], type[BaseException] | tuple[type[BaseException], ...]], ...] = (
    (OpError, OpError),
    (NotFoundError, FileNotFoundError),
    (ResourceExhaustedError, MemoryError),
    (UnimplementedError, NotImplementedError),
    (InvalidArgumentError, (ValueError, TypeError)),
)
