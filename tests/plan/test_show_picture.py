"""The picture of a plan is well-formed, complete, and shows users' text as text."""

from __future__ import annotations

from xml.etree import ElementTree

import penstock
from penstock import Dataset
from penstock.plan import show
from penstock.plan.show import draw_plan

SVG = "{http://www.w3.org/2000/svg}"


def texts(svg: str) -> list[str]:
    return [text.text or "" for text in ElementTree.fromstring(svg).iter(f"{SVG}text")]


def test_every_operator_has_a_box_with_its_function_and_length() -> None:
    def decode(x: int) -> int:
        raise AssertionError("a picture calls nothing")

    dataset = Dataset.zip((Dataset.range(3), Dataset.range(5).map(decode))).batch(2)
    svg = draw_plan(dataset.__plan__)
    root = ElementTree.fromstring(svg)
    assert len(list(root.iter(f"{SVG}rect"))) == 5
    assert len(list(root.iter(f"{SVG}path"))) == 4
    lines = texts(svg)
    assert lines[0] == "batch(size=2)"
    assert lines[1].startswith("2 elements")
    assert any(line.startswith("map(decode at test_show_picture.py:") for line in lines)


def test_users_text_is_escaped() -> None:
    bad = "<script>alert('x')</script>&\"]]>"
    dataset = penstock.data.TextLineDataset([bad])

    def call(x: bytes) -> bytes:
        return x

    call.__name__ = bad
    svg = dataset.map(call)._repr_svg_()
    assert "<script" not in svg
    assert any(bad[:8] in text for text in texts(svg))


def test_long_texts_and_many_operators_are_cut(monkeypatch) -> None:
    dataset = Dataset.range(3).with_options(penstock.data.Options())
    for _ in range(9):
        dataset = dataset.map(lambda x: x)
    monkeypatch.setattr(show, "_MOST_OPERATORS", 4)
    monkeypatch.setattr(show, "_MOST", 12)
    lines = texts(draw_plan(dataset.__plan__))
    assert len(lines) == 9
    assert lines[0] == "map(<lamb..."
    assert lines[-1].startswith("and ")


def test_completion_shows_the_public_names() -> None:
    dataset = Dataset.range(4)
    strategy = penstock.distribute.MirroredStrategy(["CPU:0"])
    distributed = strategy.experimental_distribute_dataset(dataset.batch(2))
    for shown in (dataset, iter(dataset), dataset.as_numpy_iterator(), distributed):
        assert [name for name in dir(shown) if name.startswith("_")] == []
    assert {"map", "batch", "element_spec"} <= set(dir(dataset))
    assert {"position", "profile", "state_dict"} <= set(dir(iter(distributed)))
    assert dir(penstock) == sorted(penstock.__all__)
    assert set(dir(penstock.data)) == set(penstock.data.__all__)
