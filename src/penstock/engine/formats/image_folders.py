"""Folders of images, with a sub-folder for each class: their names, labels and pixels."""

from __future__ import annotations

import os
from typing import Any

from penstock.element.dtypes import int32, string, uint8
from penstock.element.spec import TensorSpec
from penstock.engine.formats.files import Path, as_path, list_folder, read_file
from penstock.engine.formats.images import decode_image
from penstock.errors import InvalidArgumentError, InvalidTypeError

_ENDS = (".jpg", ".jpeg", ".png", ".gif", ".bmp")


def list_classes(path: Path) -> tuple[str, ...]:
    """The names of the classes of `Dataset.from_image_folder(path)`: label i is the i-th of them.

    Args:
      path: A folder with a sub-folder for each class; a local path or an fsspec URL.

    >>> import os, tempfile
    >>> from penstock.io import write_file
    >>> folder = tempfile.mkdtemp()
    >>> for name in ("dog", "cat"):
    ...     write_file(os.path.join(folder, name, "0.png"), b"...")
    >>> list_classes(folder)
    ('cat', 'dog')
    """
    call = "io.list_classes"
    return tuple(_folders(_list_images(as_path(path, call), call)))


def _list_images(root: str, call: str) -> list[str]:
    """The images in sub-folders, without hidden ones: macOS adds a file `._1.png` to `1.png`."""
    files = [name for name in list_folder(root, call) if name.lower().endswith(_ENDS)]
    return [name for name in files if "/" in name and "/." not in f"/{name}"]


def _folders(images: list[str]) -> list[str]:
    return sorted({name.partition("/")[0] for name in images})


def check_class_names(class_names: Any, call: str) -> tuple[str, ...] | None:
    if class_names is None:
        return None
    if isinstance(class_names, str) or not all(isinstance(name, str) for name in class_names):
        raise InvalidTypeError(f"{call}: class_names must be a list of names, got {class_names!r}")
    names = tuple(class_names)
    if len(set(names)) < len(names):
        raise InvalidArgumentError(f"{call}: class_names has a name twice: {list(names)}")
    return names


def list_images(
    root: str, wanted: tuple[str, ...] | None, call: str
) -> tuple[list[str], list[int]]:
    """The paths and labels of all images, class after class."""
    found = _list_images(root, call)
    folders = _folders(found)
    if wanted is not None and (missing := [name for name in wanted if name not in folders]):
        raise InvalidArgumentError(
            f"{call}: {root!r} has no folder {missing[0]!r} with images; it has "
            f"{', '.join(map(repr, folders[:20]))}"
        )
    names = tuple(folders) if wanted is None else wanted
    label_of = {name: label for label, name in enumerate(names)}
    images = [
        (label_of[folder], relative)
        for relative in found
        if (folder := relative.partition("/")[0]) in label_of
    ]
    if not images:
        raise InvalidArgumentError(
            f"{call}: {root!r} has no images ({', '.join(_ENDS)}) in sub-folders, one for each "
            "class; for images without classes, map io.decode_image over Dataset.list_files"
        )
    images.sort(key=lambda image: (image[0], os.fsencode(image[1])))
    base = root.rstrip("/")
    return [f"{base}/{relative}" for _, relative in images], [label for label, _ in images]


def spec_of(channels: int) -> dict[str, TensorSpec]:
    """The spec of an image with its label."""
    return {
        "image": TensorSpec((None, None, channels or None), uint8),
        "label": TensorSpec((), int32),
        "path": TensorSpec((), string),
    }


def read_image(channels: int, file: dict[str, Any]) -> dict[str, Any]:
    """An image with its label; a GIF is its first frame."""
    try:
        pixels = decode_image(read_file(file["path"]), channels, expand_animations=False)
    except InvalidArgumentError as error:
        name = file["path"].decode(errors="replace")
        raise InvalidArgumentError(f"{name!r}: {error.message}") from None
    return {"image": pixels, "label": file["label"], "path": file["path"]}
