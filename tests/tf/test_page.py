"""docs/from-tensorflow.md describes every name of TensorFlow as it is in penstock."""

import functools
import json
import re

import pytest

import penstock
import penstock.tf as tf
from penstock.missing_names import _INSTEAD
from penstock.tf.missing_operations import INSTEAD
from scripts import from_tensorflow as page

PLACES = {
    place: found.split() for place, found in json.loads(page.NAMES.read_text("utf-8")).items()
}
MISSING = [
    (place, name)
    for place, names in PLACES.items()
    for name in names
    if place != "distribute.Strategy" and not hasattr(page.find(place), name)
]


def test_the_page_is_fresh() -> None:
    assert page.PAGE.read_text("utf-8") == page.text_of_page(), "run scripts/from_tensorflow.py"


def test_every_missing_name_names_a_way_out() -> None:
    silent = [(place, name) for place, name in MISSING if not page.advice(place, name)]
    assert silent == []


@pytest.mark.parametrize("path", page.DIFFERENT)
def test_what_differs_is_here(path: str) -> None:
    place, _, name = path.rpartition(".")
    assert hasattr(page.find(place), name)


def test_nothing_is_promised_in_place_of_a_name_that_is_here() -> None:
    known = {page.path_of(place, name) for place, name in MISSING}
    assert [path for path in INSTEAD if path not in known] == []


def test_what_is_here_is_not_advised_against() -> None:
    with pytest.raises(ValueError, match=r"tf.math.abs is here"):
        page.advice("math", "abs")


def test_modules_list_their_names() -> None:
    modules = [place for place in PLACES if hasattr(page.find(place), "__all__")]
    listed = [(place, name) for place in modules for name in page.find(place).__all__]
    assert [pair for pair in listed if not hasattr(page.find(pair[0]), pair[1])] == []


PLAIN = ("config", "data", "data.experimental", "data.experimental.service", "distribute", "errors")
PLAIN += ("distribute.cluster_resolver", "distribute.experimental", "experimental", "io", "nest")
PLAIN += ("random", "")


@pytest.mark.parametrize("place", PLAIN)
def test_plain_modules_name_a_way_out(place: str) -> None:
    module = functools.reduce(getattr, filter(None, place.split(".")), penstock)
    names = [name for name in PLACES[place] if not hasattr(module, name)]
    silent = []
    for name in [*names, "surely_not_there"]:
        with pytest.raises(AttributeError, match=f"{name} does not exist") as error:
            getattr(module, name)
        if not re.fullmatch(r"[\w.]* does not exist[:;] .+", str(error.value)):
            silent.append(name)
    is_shared = place == "nest" or place.startswith("distribute")
    assert silent == (["surely_not_there"] if is_shared else [])


def test_modules_without_a_model_guess_the_name() -> None:
    with pytest.raises(AttributeError, match="launch.locals does not exist; did you mean local?"):
        getattr(penstock.launch, "locals")  # noqa: B009


def test_plain_penstock_names_this_room() -> None:
    assert set(tf.__all__) - set(penstock.__all__) <= set(_INSTEAD)


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("linalg.inv", "tf.linalg.inv: not here; numpy.linalg works on elements as they are"),
        ("config.experimental.reset_memory_stats", "devices and their memory belong to your"),
        ("config.experimental.list_physical_device", "did you mean list_physical_devices?"),
        ("random.experimental.Algorithm", "tf.random.experimental.Algorithm: not here; every gen"),
        ("autograph.experimental.Feature", "not here; functions always run as they are written"),
        ("errors.OUT_OF_RANG", "tf.errors.OUT_OF_RANG: not here; did you mean OUT_OF_RANGE?"),
        ("distribute.cluster_resolver.UnionResolver", "pass all addresses to SimpleClusterRes"),
        ("keras", "tf.keras: not here; import keras"),
        ("strings.lowr", "tf.strings.lowr: not here; did you mean lower?"),
        ("distribute.coordinator", "distribute.coordinator does not exist: use MultiWorker"),
        ("distribute.experimental.rpc", "distribute.experimental.rpc does not exist: use a lib"),
        ("distribute.Strategys", "distribute.Strategys does not exist; did you mean Strategy?"),
    ],
)
def test_errors_say_what_to_write(path: str, text: str) -> None:
    place, _, name = path.rpartition(".")
    with pytest.raises(AttributeError, match=re.escape(text)):
        getattr(page.find(place), name)
