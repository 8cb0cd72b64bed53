"""Patterns of RE2, TensorFlow's regular expressions, written as those of Python.

Both the pattern and the strings are UTF-8: a character is matched as one. ASCII takes the faster
way over bytes. `\\w`, `\\d` and `\\s` are ASCII, as in RE2.
"""

from __future__ import annotations

import functools
import re
import sys
import unicodedata
from collections.abc import Iterator

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
        new, characters = _decode(template), _decode(text)
        if self._may_be_empty and not count:
            made = "".join(self._replace_empty(characters, new))
        else:
            made = self._characters.sub(new, characters, count)
        return made.encode(errors="surrogateescape")

    def _replace_empty(self, text: str, template: str) -> Iterator[str]:
        """RE2 moves on by a character from an empty match that is directly behind another one."""
        place, last_end = 0, -1
        while found := self._characters.search(text, place):
            yield text[place : found.start()]
            if found.end() == last_end:
                yield text[last_end : last_end + 1]
                place = last_end + 1
                if place > len(text):
                    return
            else:
                yield found.expand(template)
                place = last_end = found.end()
        yield text[place:]

    def matches(self, text: bytes) -> bool:
        """Whether the whole string matches."""
        if self._bytes is not None and text.isascii():
            return self._bytes.fullmatch(text) is not None
        return self._characters.fullmatch(_decode(text)) is not None


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
    """A pattern of RE2 as `re` knows it; what only `re` has is refused, as RE2 refuses it."""
    translation = _Translation()
    for found in _TOKEN.finditer(pattern):
        translation.add(found.lastgroup or "plain", found)
    text = translation.text()
    if _CATEGORY.search(text.encode(errors="surrogateescape")):
        text = _write_categories(text)
    return text


class _Translation:
    """The parts of a pattern that were read so far, and the groups that are open in it."""

    def __init__(self) -> None:
        self._parts: list[str] = []
        self._flags: list[list[str]] = [[]]  # Of each open group: the flags that are set in it.
        self._are_lines: list[bool] = [False]  # Of each open group: whether lines end at a $.
        self._is_repeated = False

    def add(self, kind: str, found: re.Match[str]) -> None:
        """Translates one part of the pattern by the method that has its name."""
        was_repeated, self._is_repeated = self._is_repeated, kind == "repeat"
        if kind == "repeat":
            _check_repeat(found[0], was_repeated)
        self._parts.append(getattr(self, f"_{kind}")(found))

    def text(self) -> str:
        """The translated pattern."""
        return "".join(self._parts) + ")" * len(self._flags[0])

    def _plain(self, found: re.Match[str]) -> str:
        return r"\{" if found[0] == "{" else found[0]

    _repeat = _category = _plain

    def _quotation(self, found: re.Match[str]) -> str:
        return re.escape(found["quotation"])

    def _code(self, found: re.Match[str]) -> str:
        return re.escape(_character(found["code"]))

    def _escape(self, found: re.Match[str]) -> str:
        return _escape_of(found["escape"]) or {"s": _SPACES, "S": _NO_SPACES}[found["escape"]]

    def _set(self, found: re.Match[str]) -> str:
        return _set_of(found["set"])

    def _end(self, found: re.Match[str]) -> str:
        return "$" if self._are_lines[-1] else r"\Z"

    def _ending(self, found: re.Match[str]) -> str:
        names, ending = found["flag"], found["ending"]
        if set(names) - set("ims-"):
            raise re.error(f"unknown flags {names!r}")
        opening = f"(?{names}:"
        if ending == ":":
            self._enter()
        elif names:
            self._flags[-1].append(opening)
        if "m" in names:
            self._are_lines[-1] = "m" in names.partition("-")[0]
        return opening if names or ending == ":" else ""

    def _open(self, found: re.Match[str]) -> str:
        if found["open"] == "(?":
            raise re.error("RE2 does not look around, and knows no comments and no conditions")
        self._enter()
        return found["open"]

    def _enter(self) -> None:
        self._flags.append([])
        self._are_lines.append(self._are_lines[-1])

    def _close(self, found: re.Match[str]) -> str:
        if len(self._flags) == 1:
            raise re.error("a ) without its (")
        self._are_lines.pop()
        return ")" * (len(self._flags.pop()) + 1)

    def _branch(self, found: re.Match[str]) -> str:
        flags = self._flags[-1]
        return ")" * len(flags) + "|" + "".join(flags)


def _check_repeat(text: str, was_repeated: bool) -> None:
    if was_repeated:
        raise re.error(f"the repetition {text!r} follows another one")
    if any(int(number) > 1000 for number in re.findall(r"\d+", text)):
        raise re.error(f"the repetition {text!r} is greater than 1000")


def _character(code: str) -> str:
    if int(code, 16) > sys.maxunicode:
        raise re.error(f"there is no character {code!r}")
    return chr(int(code, 16))


def _escape_of(text: str) -> str:
    """What follows a backslash, as `re` has it; nothing for white space, which sets write alone."""
    if text in ("s", "S"):
        return ""
    if text[0] in "01234567" and (len(text) > 1 or text == "0"):
        return re.escape(chr(int(text, 8)))
    if text.isascii() and text.isalnum() and text not in _ESCAPES:
        raise re.error(f"the escape \\{text} is not known here")
    return r"\Z" if text == "z" else "\\" + text


def _set_of(text: str) -> str:
    """A set of characters, with its classes written out."""
    negated = re.fullmatch(r"\[\[:\^(\w+):\]\]", text)
    if negated:
        return f"[^{_class_of(negated[1])}]"
    inner = _IN_SET.sub(_of_set, text[2:-1] if text[1] == "^" else text[1:-1])
    return f"[^{inner}]" if text[1] == "^" else f"[{inner}]"


def _of_set(found: re.Match[str]) -> str:
    if found["name"]:
        return _class_of(found["name"])
    if found["hex"]:
        return re.escape(_character(found["hex"]))
    if found["escaped"]:
        return _escape_of(found["escaped"]) or {"s": r"\t\n\f\r ", "S": r"\S\v"}[found["escaped"]]
    if found["dashes"]:
        return r"-\-"
    return found[0] if found[0].startswith("\\") else "\\" + found[0]


def _class_of(name: str) -> str:
    if name not in _CLASSES:
        raise re.error(f"unknown class of characters {name!r}")
    return _CLASSES[name]


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

_TOKEN = re.compile(
    r"""
    \\Q (?P<quotation>.*?) (?:\\E|\Z)
    | (?P<category> \\[pP] (?: \{\^?\w+\} | \w ))
    | \\x\{ (?P<code>[0-9A-Fa-f]+) \}
    | \\ (?P<escape> 0[0-7]{0,2} | [1-7][0-7]{1,2} | . )
    | (?P<set> \[ \^? \]? (?: \[:\^?\w+:\] | \\. | [^\]\\] )* \] )
    | \(\? (?P<flag>[A-Za-z-]*) (?P<ending>[:)])
    | (?P<open> \(\?P< | \(\? | \( )
    | (?P<close> \) )
    | (?P<branch> \| )
    | (?P<end> \$ )
    | (?P<repeat> (?: [*+?] | \{ \d+ (?:,\d*)? \} ) \?? )
    | .
    """,
    re.DOTALL | re.VERBOSE,
)
_IN_SET = re.compile(
    r"\[:(?P<name>\w+):\]|\\x\{(?P<hex>[0-9A-Fa-f]+)\}"
    r"|\\[pP](?:\{\^?\w+\}|\w)|\\(?P<escaped>0[0-7]{0,2}|[1-7][0-7]{1,2}|.)|(?P<dashes>--)|[\[\]&~|]",
    re.DOTALL,
)
_ESCAPES = frozenset("AbBdDwWafnrtvxz")
_SPACES, _NO_SPACES = r"[\t\n\f\r ]", r"[^\t\n\f\r ]"
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
