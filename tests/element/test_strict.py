"""Strings in functions: code that takes bytes for text fails, and other code does not notice."""

import copy
import io
import os
import pickle
import zlib
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest

from penstock.data import Dataset
from penstock.element.strict import StrictBytes
from penstock.errors import InvalidArgumentError

LETTERS = Dataset.from_tensor_slices(["a", "b", "c"])

TAKEN_FOR_TEXT: dict[str, Callable[[Any], Any]] = {
    "==": lambda x: x == "a",
    "!=": lambda x: x != "a",
    "the other way": lambda x: "a" == x,  # noqa: SIM300
    "in a tuple": lambda x: x in ("b", "a"),
    "in a set": lambda x: x in {"a"},
    "as a key": lambda x: {"a": True}.get(x, False),
    "a piece": lambda x: x.strip().split(b",")[0][:1].lower() == "a",
    "a suffix": lambda x: os.path.splitext(x)[1] == ".txt",
    "formatted": lambda x: f"{x}.txt" == "a.txt",
    "format()": lambda x: "{:>3}".format(x) == "a",  # noqa: UP032
}


@pytest.mark.parametrize("call", TAKEN_FOR_TEXT.values(), ids=TAKEN_FOR_TEXT)
def test_bytes_are_not_taken_for_text_without_a_word(call: Any) -> None:
    for dataset in (LETTERS.filter(call), LETTERS.map(call), LETTERS.map(call, 2)):
        with pytest.raises(
            InvalidArgumentError, match=r"for element 0 \(.*\): TypeError: strings "
        ):
            next(iter(dataset))


MADE_TEXT: dict[str, Callable[[Any], Any]] = {
    "percent": lambda x: "%s.txt" % x,  # noqa: UP031
    "percent of several": lambda x: "%s/%d" % (x, 1),  # noqa: UP031
    "str()": lambda x: str(x) + ".txt",
    "a piece": lambda x: str(x.strip()[:1]),
}


@pytest.mark.parametrize("call", MADE_TEXT.values(), ids=MADE_TEXT)
def test_bytes_become_text_with_a_warning(call: Any) -> None:
    with pytest.warns(UserWarning, match=r"write them with their b and quotes, like b'a'; use th"):
        first = next(iter(LETTERS.map(call)))
    assert first.startswith(b"b'a'")


def test_bytes_are_printed_with_a_warning(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.warns(UserWarning, match="print\\(\\) write them") as caught:
        assert list(LETTERS.filter(lambda x: print(x) is None)) == [b"a", b"b", b"c"]
    assert capsys.readouterr().out.endswith("b'a'\nb'b'\nb'c'\n")
    assert caught[0].filename == __file__, "the warning names the line of the function"


class NamedLetter(NamedTuple):
    letter: Any


IN_ELEMENTS: dict[str, Dataset] = {
    "tuple": LETTERS.enumerate().filter(lambda _, x: x == "a"),
    "dict": LETTERS.map(lambda x: {"k": x}).filter(lambda d: d["k"] == "a"),
    "named tuple": LETTERS.map(NamedLetter).filter(lambda d: d.letter == "a"),
    "array": LETTERS.batch(2).map(lambda x: x == "a"),
    "column": LETTERS.map(lambda x: x == "a", vectorized=True),
    "random": LETTERS.map(lambda x, random: x == "a", random=True),
    "flat_map": LETTERS.flat_map(lambda x: Dataset.from_tensors(x == "a")),
    "scan": LETTERS.scan(np.int64(0), lambda state, x: (state, x == "a")),
    "take_while": LETTERS.take_while(lambda x: x != "c"),
    "group_by_window": LETTERS.group_by_window(lambda x: int(x == "a"), lambda k, w: w.batch(2), 2),
}


@pytest.mark.parametrize("dataset", IN_ELEMENTS.values(), ids=IN_ELEMENTS)
def test_wherever_they_are_in_an_element(dataset: Dataset) -> None:
    with pytest.raises(
        InvalidArgumentError, match=r"equals no str; compare it with b'[ac]', or dec"
    ):
        list(dataset)


def test_in_a_reduction() -> None:
    with pytest.raises(InvalidArgumentError, match="equals no str"):
        LETTERS.reduce(np.int64(0), lambda count, x: count + (x == "a"))


def test_later_elements_are_tried_too() -> None:
    """A rare branch is found sooner or later: a chunk has a millisecond of calls."""
    words = Dataset.from_tensor_slices([b"%d" % i for i in range(50_000)])
    call = lambda x: len(x) < 3 or x == "a"  # noqa: E731
    with pytest.raises(InvalidArgumentError, match="equals no str"):
        list(words.filter(call))


@pytest.mark.parametrize(
    "apply",
    [
        lambda words, call: words.map(call),
        lambda words, call: words.map(call, num_parallel_calls=2, deterministic=False),
        lambda words, call: words.filter(lambda x: call(x) != b""),
        lambda words, call: words.group_by_window(
            lambda x: len(call(x)), lambda _, w: w.batch(9), 9
        ),
    ],
    ids=["map", "threads", "filter", "group_by_window"],
)
def test_few_calls_get_strict_strings_because_their_methods_are_slow(apply: Any) -> None:
    found = []

    def call(word: Any) -> Any:
        found.append(type(word) is StrictBytes)
        zlib.crc32(bytes(200_000))  # Work, so that there are few elements in a chunk.
        return word

    list(apply(Dataset.from_tensor_slices([b"%04d" % i for i in range(2000)]), call).repeat(2))
    assert 2 <= sum(found) <= 50


def test_bytes_are_compared_and_decoded_as_ever() -> None:
    assert list(LETTERS.filter(lambda x: x == b"a")) == [b"a"]
    assert list(LETTERS.map(lambda x: f"{x.decode()}.txt")) == [b"a.txt", b"b.txt", b"c.txt"]
    assert list(LETTERS.map(lambda x: {b"a": 1, b"b": 2, b"c": 3}[x])) == [1, 2, 3]
    assert list(LETTERS.map(lambda x: x == None)) == [False] * 3  # noqa: E711


@pytest.mark.parametrize("again", [lambda x: x, lambda x: (x, x)[1], lambda x: {"k": [x]}["k"][0]])
def test_users_see_plain_bytes(again: Any) -> None:
    inner = LETTERS.flat_map(lambda x: Dataset.range(2).map(lambda _: x))
    for dataset in (LETTERS.map(again), LETTERS.map(again, 2), inner):
        assert {type(x) for x in dataset} == {bytes}
    assert type(LETTERS.map(again)[0]) is bytes
    (batch,) = LETTERS.batch(3).map(lambda x: x)
    assert {type(x) for x in batch} == {bytes}
    assert type(LETTERS.reduce(b"", lambda _, x: x)) is bytes


def test_all_else_is_as_with_bytes() -> None:
    plain = b"ab\0cd\0"
    strict = StrictBytes(plain)
    assert isinstance(strict, bytes)
    assert type(strict).__name__ == "bytes"
    assert (repr(strict), hash(strict)) == (repr(plain), hash(plain))
    with pytest.warns(UserWarning, match="write them with"):
        assert str(strict) == str(plain)
    assert str(strict, "ascii") == strict.decode() == plain.decode()
    assert type(pickle.loads(pickle.dumps(strict))) is bytes
    assert copy.deepcopy(strict) == copy.copy(strict) == plain
    assert bytes(np.array(strict)) == bytes(np.array(plain))
    assert np.array([strict]).dtype == np.array([plain]).dtype
    assert np.frombuffer(strict, np.uint8).tolist() == list(plain) == list(strict)
    assert io.BytesIO(strict).read() == plain
    assert (int(StrictBytes(b"12")), float(StrictBytes(b"1.5"))) == (12, 1.5)
    assert b"".join([strict, strict]) == plain * 2 == strict * 2
    assert strict.partition(b"\0") == plain.partition(b"\0")
    assert (strict + b"e")[-3:-1] == b"d\0"
    assert strict[0] == 97
    assert strict == np.bytes_(plain)
    assert (strict == np.array([b"ab\0cd", b"q"])).tolist() == [True, False]


def test_text_in_arrays_is_text() -> None:
    with pytest.raises(TypeError, match="equals no str"):
        StrictBytes(b"a") == np.array(["a"])  # noqa: B015


def test_arguments_of_a_generator_are_strict_as_well() -> None:
    def generate(name: Any) -> Any:
        yield name == "x"

    with pytest.raises(InvalidArgumentError, match="equals no str; compare it with b'x'"):
        list(Dataset.from_generator(generate, np.bool_, args=("x",)))
