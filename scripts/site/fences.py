"""Puts the doctests of docstrings into fences, which Markdown needs."""

import re

# A doctest ends at an empty line, as Python's doctest sees it.
EXAMPLE = re.compile(r"^( *)>>> .*\n?(?:^(?! *$).*\n?)*", re.MULTILINE)
FLAG = re.compile(r" *# doctest: .*")


def fence_examples(text: str) -> str:
    """The same text; every example is a block of code, without what only doctest needs."""

    def fence(match: re.Match[str]) -> str:
        indent = match[1]
        text = match[0].rstrip("\n").replace("<BLANKLINE>", "")
        lines = [FLAG.sub("", line) for line in text.split("\n")]
        return "\n".join([f"{indent}```pycon", *lines, f"{indent}```", ""])

    return EXAMPLE.sub(fence, text)
