"""How tests run plans: pulled by a limit, saved anywhere, opened again, failures as values."""

import copy
import itertools
import json
from collections.abc import Iterator
from typing import Any

from penstock.data.dataset import ENVIRONMENT
from penstock.engine.context import Context
from penstock.engine.contract import State, Stream, copy_state
from penstock.engine.lower import open_plan
from penstock.plan.nodes import Node
from tests.engine.list_model import items
from tests.engine.list_values import plain

MOST = 500


def model(plan: Node) -> list[Any]:
    """The elements of a plan according to the list model."""
    return [plain(item) for item in itertools.islice(items(plan), MOST)]


def open_stream(plan: Node, state: State = None) -> Stream:
    return open_plan(plan, state, Context(ENVIRONMENT, key=7))


def pulls(stream: Stream, limit: int) -> Iterator[list[Any]]:
    """The elements of each pull; a failure counts as a pull of one element."""
    while True:
        try:
            chunk = stream.pull(limit)
            assert 1 <= len(chunk) <= limit
            yield [plain(element) for element in chunk.elements()]
        except StopIteration:
            return
        except Exception as error:
            yield [plain(error)]


def drain_stream(stream: Stream, limit: int) -> list[Any]:
    """Pulls all remaining elements of a stream, and closes it."""
    found = list(itertools.islice(itertools.chain.from_iterable(pulls(stream, limit)), MOST))
    stream.close()
    return found


def take_elements(iterator: Iterator[Any], most: int = MOST) -> list[Any]:
    """The next elements that a user gets, with failures as values."""
    found: list[Any] = []
    while len(found) < most:
        try:
            found.append(plain(next(iterator)))
        except StopIteration:
            break
        except Exception as error:
            found.append(plain(error))
    return found


def saves(plan: Node, limit: int) -> Iterator[tuple[int, State]]:
    """The states before and after every pull, with how many elements came before each."""
    stream = open_stream(plan)
    count = 0
    yield 0, copy_state(stream.save())
    for pulled in pulls(stream, limit):
        count += len(pulled)
        yield count, copy_state(stream.save())
    yield count, copy_state(stream.save())
    stream.close()


def is_json(state: State) -> bool:
    try:
        return bool(json.loads(json.dumps(state)) == state)
    except TypeError:
        return False


def reload_state(state: State) -> State:
    """A state as it comes back from a file, or from memory where it holds elements."""
    return json.loads(json.dumps(state)) if is_json(state) else copy.deepcopy(state)
