"""Writes small tar archives with the `webdataset` package, and what that package reads of them.

Run it from the repository's root with a Python that has webdataset:

    python -m tests.engine.formats.record_tar
"""

from __future__ import annotations

import io
import json
import pathlib
import tarfile
from typing import Any

import webdataset

GOLDEN = pathlib.Path(__file__).parent / "golden"
LONG = "a folder/" * 12 + "sample"


def write_shard(path: pathlib.Path) -> None:
    """By webdataset's own writer."""
    with webdataset.TarWriter(str(path)) as sink:
        for number in range(5):
            sink.write(
                {
                    "__key__": f"folder/{number:04}",
                    "txt": f"number {number}",
                    "cls": number,
                    "seg.PNG".lower(): bytes(range(number)),
                }
            )


def write_members(path: pathlib.Path, format: int, mode: str = "w") -> None:
    """By tarfile: folders, names of every length, members that are no part of a sample."""
    with tarfile.open(path, mode, format=format) as archive:  # type: ignore[call-overload]
        folder = tarfile.TarInfo("folder")
        folder.type = tarfile.DIRTYPE
        archive.addfile(folder)
        for name in (
            "README",
            "folder/a.txt",
            "folder/a.b.CLS",
            "__meta__.txt",
            "b.txt",
            "b.b.cls",
        ):
            add(archive, name)
        for field in ("txt", "b.cls"):
            add(archive, f"{LONG}.{field}")
            add(archive, f"ünïcode.{field}" if field == "b.cls" else f"{LONG[:-7]}/x.y")
        link = tarfile.TarInfo("b2.txt")
        link.type, link.linkname = tarfile.SYMTYPE, "b.txt"
        archive.addfile(link)


def add(archive: tarfile.TarFile, name: str) -> None:
    data = f"data of {name}".encode() * 3
    member = tarfile.TarInfo(name)
    member.size = len(data)
    archive.addfile(member, io.BytesIO(data))


def read(path: pathlib.Path) -> list[dict[str, Any]]:
    pipeline = webdataset.WebDataset(str(path), shardshuffle=False)
    return [
        {
            name: value if isinstance(value, str) else value.decode("latin-1")
            for name, value in sample.items()
            if name in ("__key__",) or not name.startswith("__")
        }
        for sample in pipeline
    ]


def main() -> None:
    write_shard(GOLDEN / "shard.tar")
    write_members(GOLDEN / "gnu.tar", tarfile.GNU_FORMAT)
    write_members(GOLDEN / "pax.tar", tarfile.PAX_FORMAT)
    write_members(GOLDEN / "pax.tar.gz", tarfile.PAX_FORMAT, "w:gz")
    names = ("shard.tar", "gnu.tar", "pax.tar", "pax.tar.gz")
    answers = {name: read(GOLDEN / name) for name in names}
    (GOLDEN / "tar.json").write_text(json.dumps(answers, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
