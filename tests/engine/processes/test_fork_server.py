"""The text that says how a process ended."""

import pytest

from penstock.engine.processes.fork_server import describe_exit


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (0, "exited with code 0"),
        (3, "exited with code 3"),
        (-9, "was killed by signal 9 (killed)"),
        (-11, "was killed by signal 11 (segmentation fault)"),
        (-1000, "was killed by signal 1000"),
    ],
)
def test_an_exit_code_in_words(code: int, words: str) -> None:
    assert describe_exit(code) == words
