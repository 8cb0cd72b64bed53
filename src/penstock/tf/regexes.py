"""Patterns of RE2, TensorFlow's regular expressions, written as those of Python.

Both the pattern and the strings are UTF-8: a character is matched as one. ASCII takes the faster
way over bytes. `\\w`, `\\d` and `\\s` are ASCII, as in RE2.
"""

from __future__ import annotations

import functools
import re
import sys
import unicodedata

from penstock.errors import InvalidArgumentError


class Regex:
    """A pattern, for strings of bytes."""

    def __init__(self, pattern: bytes) -> None:
        text = _of_re2(_decode(pattern))
        self._characters = re.compile(text, re.ASCII)
        in_bytes = pattern.isascii() and not _CATEGORY.search(pattern)
        self._bytes = re.compile(text.encode()) if in_bytes else None
        self._may_be_empty = self._characters.fullmatch("") is not None

    def replace(self, text: bytes, rewrite: bytes, count: int) -> bytes:
        """The string with its first `count` matches replaced; 0 replaces all."""
        template, last_group, is_valid = _template(rewrite)
        if last_group > self._characters.groups or (count and not is_valid):
            return text
        if self._bytes is not None and text.isascii() and not self._may_be_empty:
            return self._bytes.sub(template, text, count)
        new = _decode(template)
        replace = _NotBehindAMatch(new) if self._may_be_empty else new
        made = self._characters.sub(replace, _decode(text), count)
        return made.encode(errors="surrogateescape")

    def matches(self, text: bytes) -> bool:
        """Whether the whole string matches."""
        if self._bytes is not None and text.isascii():
            return self._bytes.fullmatch(text) is not None
        return self._characters.fullmatch(_decode(text)) is not None


class _NotBehindAMatch:
    """A replacement that leaves out an empty match directly behind another match, as RE2 does."""

    def __init__(self, template: str) -> None:
        self._template, self._end = template, 0

    def __call__(self, found: re.Match[str]) -> str:
        is_behind = found.start() == found.end() == self._end > 0
        self._end = found.end()
        return "" if is_behind else found.expand(self._template)


@functools.lru_cache(maxsize=128)
def regex_of(call: str, pattern: bytes) -> Regex:
    """The compiled pattern; InvalidArgumentError if it is not valid."""
    try:
        return Regex(pattern)
    except re.error as error:
        raise InvalidArgumentError(
            f"tf.strings.{call}: the pattern {pattern!r} is not valid: {error}"
        ) from None


def _decode(text: bytes) -> str:
    return text.decode(errors="surrogateescape")


@functools.lru_cache(maxsize=128)
def _template(rewrite: bytes) -> tuple[bytes, int, bool]:
    r"""A template of RE2 as one of `re`, its last group, and whether it is valid.

    `\0` is the whole match. RE2 drops what follows another escape than `\\` and those of groups.
    """
    made, groups = [], [0]
    for part in re.findall(rb"\\.?|[^\\]+", rewrite, re.DOTALL):
        if part[:1] != b"\\" or part == rb"\\":
            made.append(part)
        elif part[1:].isdigit():
            groups.append(int(part[1:]))
            made.append(b"\\g<%d>" % groups[-1])
        else:
            return b"".join(made), max(groups), False
    return b"".join(made), max(groups), True


def _of_re2(pattern: str) -> str:
    """A pattern with the classes that only RE2 has written as `re` knows them."""
    pattern = _QUOTED.sub(lambda found: re.escape(found[1]), pattern)
    for name, letters in _CLASSES.items():
        pattern = pattern.replace(f"[[:^{name}:]]", f"[^{letters}]")
        pattern = pattern.replace(f"[:{name}:]", letters)
    if _CATEGORY.search(pattern.encode(errors="surrogateescape")):
        pattern = _write_categories(pattern)
    return pattern.replace(r"\z", r"\Z")


_CLASSES = {
    "alnum": "0-9A-Za-z",
    "alpha": "A-Za-z",
    "digit": "0-9",
    "lower": "a-z",
    "punct": r"!-/:-@\[-`{-~",
    "space": r"\t\n\v\f\r ",
    "upper": "A-Z",
    "word": "0-9A-Za-z_",
}

_QUOTED = re.compile(r"\\Q(.*?)(?:\\E|$)", re.DOTALL)
_CATEGORY = re.compile(rb"\\[pP]")
_PART = re.compile(r"\\([pP])(?:\{(\^?)(\w+)\}|(\w))|\\.|[\[\]]|[^\\\[\]]+", re.DOTALL)


def _write_categories(pattern: str) -> str:
    r"""Categories of Unicode, such as `\p{L}` and `\PN`, as sets of characters."""
    parts, in_set = [], False
    for found in _PART.finditer(pattern):
        text, letter = found[0], found[1]
        if letter:
            name, is_negated = found[3] or found[4], (letter == "P") != bool(found[2])
            text = _characters_of(name, is_negated)
            text = text if in_set else f"[{text}]"
        elif text == "[":
            in_set = True
        elif text == "]":
            in_set = False
        parts.append(text)
    return "".join(parts)


@functools.cache
def _characters_of(category: str, is_negated: bool) -> str:
    """The inside of a set: the characters of a category, or all other characters."""
    ranges: list[list[int]] = []
    for code in range(sys.maxunicode + 1):
        if unicodedata.category(chr(code)).startswith(category) is is_negated:
            continue
        if ranges and ranges[-1][1] == code - 1:
            ranges[-1][1] = code
        else:
            ranges.append([code, code])
    if not ranges:
        raise re.error(f"unknown category of Unicode {category!r}")
    return "".join(f"\\U{first:08x}-\\U{last:08x}" for first, last in ranges)
