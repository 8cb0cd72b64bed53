"""Folders of images, beside what Pillow reads."""

import numpy as np
import pytest
from PIL import Image

from penstock import io
from penstock.data import Dataset
from penstock.data.experimental import service
from penstock.errors import InvalidArgumentError, InvalidTypeError, NotFoundError


@pytest.fixture
def folder(tmp_path):
    draw = np.random.default_rng(0)
    for name in ("dog/b.png", "dog/a.JPG", "cat/2.png", "cat/deep/1.bmp", "ant/0.gif"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = draw.integers(0, 255, (4 + len(name), 6, 3), np.uint8)
        Image.fromarray(pixels).save(path)
    (tmp_path / "dog" / "notes.txt").write_text("no image")
    (tmp_path / "empty").mkdir()
    Image.new("RGB", (2, 2)).save(tmp_path / "outside.png")
    return tmp_path


ORDER = ["ant/0.gif", "cat/2.png", "cat/deep/1.bmp", "dog/a.JPG", "dog/b.png"]


def paths(ds):
    return [element["path"].decode() for element in ds]


def test_images_are_those_that_pillow_reads(folder):
    ds = Dataset.from_image_folder(folder)
    assert io.list_classes(folder) == ("ant", "cat", "dog")
    assert paths(ds) == [f"{folder}/{name}" for name in ORDER]
    assert [int(element["label"]) for element in ds] == [0, 1, 1, 2, 2]
    assert ds.element_spec["image"].shape.as_list() == [None, None, 3]
    for index, name in enumerate(ORDER):
        with Image.open(folder / name) as image:
            np.testing.assert_array_equal(ds[index]["image"], np.asarray(image.convert("RGB")))


def test_images_have_random_access(folder):
    ds = Dataset.from_image_folder(str(folder), num_parallel_calls=None)
    assert len(ds) == 5
    assert ds[3]["path"].decode().endswith("a.JPG")
    shuffled = Dataset.from_image_folder(folder).shuffle(5, seed=1)
    assert sorted(paths(shuffled)) == sorted(paths(ds))


def test_every_image_can_be_resumed_from(folder):
    ds = Dataset.from_image_folder(folder)
    expected, iterator = paths(ds), iter(ds)
    for number in range(6):
        resumed = iter(ds)
        resumed.load_state_dict(iterator.state_dict())
        assert paths(resumed) == expected[number:]
        next(iterator, None)


def test_workers_decode_the_images(folder):
    ds = Dataset.from_image_folder(folder).map(lambda one: (one["path"], one["image"].sum()))
    local = [(path, int(total)) for path, total in ds]
    remote = ds.apply(service.distribute("distributed_epoch", "local://2"))
    assert [(path, int(total)) for path, total in remote] == local


def test_classes_can_be_chosen_and_channels(folder):
    ds = Dataset.from_image_folder(folder, class_names=["dog", "ant"], channels=1)
    assert [int(element["label"]) for element in ds] == [0, 0, 1]
    assert ds[0]["image"].shape == (13, 6, 1)


def test_hidden_files_and_folders_are_passed_over(folder):
    for name in ("cat/._1.png", "cat/.cache/1.png", ".thumbnails/1.png"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(b"no image")
    assert io.list_classes(folder) == ("ant", "cat", "dog")
    assert paths(Dataset.from_image_folder(folder)) == [f"{folder}/{name}" for name in ORDER]


def test_folders_may_be_remote(folder):
    for name in ORDER:
        io.write_file(f"memory://test_image_folders/{name}", (folder / name).read_bytes())
    ds = Dataset.from_image_folder("memory://test_image_folders")
    assert paths(ds) == [f"memory://test_image_folders/{name}" for name in ORDER]
    np.testing.assert_array_equal(ds[1]["image"], Dataset.from_image_folder(folder)[1]["image"])


def test_a_damaged_image_is_an_error_that_names_it(folder):
    (folder / "cat" / "2.png").write_bytes(b"no image")
    ds = Dataset.from_image_folder(folder)
    with pytest.raises(
        InvalidArgumentError, match="cat/2.png': io.decode_image: 8 bytes that begin"
    ):
        list(ds)
    assert len(paths(ds.ignore_errors())) == 4


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"channels": 2}, InvalidArgumentError, "channels must be 0, 1, 3 or 4, got 2"),
        (
            {"class_names": "dog"},
            InvalidTypeError,
            "class_names must be a list of names, got 'dog'",
        ),
        (
            {"class_names": ["dog", "dog"]},
            InvalidArgumentError,
            r"class_names has a name twice: \['dog', 'dog'\]",
        ),
        ({"class_names": ["emu"]}, InvalidArgumentError, "has no folder 'emu' with images; it has"),
    ],
)
def test_wrong_arguments_are_refused(arguments, error, message, folder):
    with pytest.raises(error, match=message):
        Dataset.from_image_folder(folder, **arguments)


def test_folders_without_classes_are_refused(folder):
    with pytest.raises(InvalidArgumentError, match="has no images .* in sub-folders, one for each"):
        Dataset.from_image_folder(folder / "dog")
    with pytest.raises(NotFoundError, match="Dataset.from_image_folder: .*missing' does not exist"):
        Dataset.from_image_folder(folder / "missing")
    with pytest.raises(NotFoundError, match="io.list_classes: .* does not exist"):
        io.list_classes("memory://test_image_folders_missing")
