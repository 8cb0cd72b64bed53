"""The tree of exceptions: its drawing, what is public, and the builtins behind it."""

import builtins
import pickle
import re

import pytest

from penstock import errors

CLASSES = {name: kind for name, kind in vars(errors).items() if isinstance(kind, type)}
HIDDEN = sorted(set(CLASSES) - set(errors.__all__))


def test_the_drawing_shows_what_is_public() -> None:
    drawn = re.findall(r"^ +(?:[├└│─ ]*)(\w+Error)\b", errors.__doc__ or "", re.MULTILINE)
    assert drawn == errors.__all__


@pytest.mark.parametrize("name", errors.__all__[1:])
def test_every_public_class_is_a_builtin_too(name: str) -> None:
    drawn = re.search(rf"\b{name} *\((\w+)\)", errors.__doc__ or "")
    assert drawn is not None
    assert issubclass(CLASSES[name], errors.OpError)
    assert issubclass(CLASSES[name], getattr(builtins, drawn[1]))


@pytest.mark.parametrize("name", HIDDEN)
def test_other_classes_only_add_a_base_to_a_public_one(name: str) -> None:
    public, second = CLASSES[name].__bases__
    assert public.__name__ in errors.__all__
    assert not issubclass(public, second)


def test_errors_are_made_as_in_tensorflow() -> None:
    made = errors.OpError(None, None, "text", 7)
    again = pickle.loads(pickle.dumps(made))
    assert (again.message, again.error_code, again.args) == ("text", 7, ("text",))
    assert errors.NotFoundError("text", error_code=9).error_code == 9
    assert str(errors.UnknownError(None, None)) == ""
    assert str(errors.InvalidArgumentError(None)) == "None"
