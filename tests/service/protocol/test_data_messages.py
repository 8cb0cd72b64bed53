"""Exceptions on their way from a worker to the user."""

import traceback

import pytest

from penstock import errors
from penstock.errors import InvalidArgumentError, NotFoundError, OpError, UnknownError
from penstock.service.protocol.data_messages import (
    Failed,
    fault_of,
    from_failed,
    from_impossible,
    to_impossible,
)


def catch_error(error: BaseException) -> BaseException:
    try:
        raise error
    except BaseException as caught:
        return caught


def send_error(error: BaseException) -> OpError:
    return from_failed(Failed(3, 17, **vars(fault_of(catch_error(error), "host:1"))))


def test_an_error_comes_back_as_what_it_was():
    error = send_error(InvalidArgumentError("Dataset.map: f at a.py:3 failed for element 17"))
    assert type(error) is InvalidArgumentError
    assert str(error) == "Dataset.map: f at a.py:3 failed for element 17 (on worker host:1)"


def test_the_remote_traceback_is_shown_below():
    text = "".join(traceback.format_exception(send_error(ValueError("no"))))
    assert "Traceback on the worker:" in text
    assert "raise error" in text


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ValueError("x"), "InvalidArgumentError"),
        (FileNotFoundError("x"), "NotFoundError"),
        (MemoryError("x"), "ResourceExhaustedError"),
        (ZeroDivisionError("x"), "UnknownError"),
        (SystemExit(2), "UnknownError"),
        (errors.DisagreementError("x"), "DisagreementError"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_any_exception_has_a_class_of_ours(error, kind):
    assert type(send_error(error)) is getattr(errors, kind)
    if not isinstance(error, OpError):
        assert type(error).__name__ in str(send_error(error))


@pytest.mark.parametrize(
    ("error", "kind", "text"),
    [
        (KeyError("a key"), KeyError, "'a key'"),
        (OSError(2, "gone"), FileNotFoundError, "[Errno 2] gone"),
        (
            UnicodeDecodeError("utf-8", b"x", 0, 1, "no"),
            UnknownError,
            "UnicodeDecodeError: 'utf-8'",
        ),
        (SystemExit(2), UnknownError, "SystemExit: 2"),
        (type("OfSomebody", (Exception,), {})("their own"), UnknownError, "OfSomebody: their own"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_what_a_function_raised_is_the_cause(error, kind, text):
    cause = send_error(error).__cause__
    assert type(cause) is kind
    assert str(cause).startswith(text)


def test_an_error_of_ours_has_the_cause_that_it_had():
    error = InvalidArgumentError("of ours")
    assert send_error(error).__cause__ is None
    error.__cause__ = ZeroDivisionError("by zero")
    assert type(send_error(error).__cause__) is ZeroDivisionError


class OfAUser(NotFoundError):
    """A class that only the worker knows."""


def test_a_foreign_class_becomes_the_nearest_of_ours():
    assert type(send_error(OfAUser("x"))) is NotFoundError


@pytest.mark.parametrize("kind", ["NoSuchError", "kind_of", "_KINDS", "__builtins__", ""])
def test_an_unknown_class_is_an_unknown_error(kind):
    failed = Failed(1, 2, **vars(fault_of(ValueError("x"), "host:1")))
    renamed = type(failed)(1, 2, kind, failed.message)
    assert type(from_failed(renamed)) is UnknownError
    assert not hasattr(from_failed(renamed), "__notes__")


def test_long_texts_are_cut_in_the_middle():
    error = send_error(ValueError("begin" + "x" * 10**6 + "end"))
    assert len(str(error)) < 20_000
    assert "begin" in str(error)
    assert "end (on worker" in str(error)
    assert "characters left out" in str(error)


@pytest.mark.parametrize(
    ("error", "elsewhere"),
    [
        (NotFoundError("no such file"), True),
        (errors.FailedPreconditionError("no such module"), True),
        (errors.UnavailableError("no answer"), True),
        (InvalidArgumentError("not a plan"), False),
        (ValueError("odd"), False),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_is_the_fault_of_a_machine_may_go_elsewhere(error, elsewhere):
    impossible = to_impossible(5, catch_error(error), "host:1")
    assert (impossible.request, impossible.elsewhere) == (5, elsewhere)
    back = from_impossible(impossible)
    assert isinstance(back, OpError)
    assert str(error) in str(back)
