"""`tf.io.gfile` on local paths and behind URLs alike."""

import os
import uuid

import numpy as np
import pytest

import penstock.tf as tf
from penstock.errors import AlreadyExistsError, NotFoundError, PermissionDeniedError

gfile = tf.io.gfile


@pytest.fixture(params=["local", "memory"])
def folder(request, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # What is made by mistake is found below.
    if request.param == "local":
        yield str(tmp_path / "given")
    else:
        yield f"memory://{uuid.uuid4().hex}"
        assert os.listdir(tmp_path) == []


def write(path, text) -> None:
    with gfile.GFile(path, "w") as file:
        file.write(text)


def read(path, mode="r"):
    with gfile.GFile(path, mode) as file:
        return file.read()


def test_files_and_folders(folder) -> None:
    inner = gfile.join(folder, "a", "b")
    gfile.makedirs(inner)
    gfile.makedirs(inner)
    assert gfile.isdir(inner)
    first = gfile.join(inner, "first.txt")
    write(first, "één\n")
    assert gfile.exists(tf.constant(first))
    assert not gfile.isdir(first)
    assert read(first) == "één\n"
    assert read(first, "rb") == "één\n".encode()
    with gfile.GFile(first, "a") as file:
        file.write("two\n")
    with gfile.GFile(first) as file:
        assert list(file) == ["één\n", "two\n"]
    found = gfile.stat(first)
    assert (found.length, found.is_directory) == (10, False)
    assert found.mtime_nsec > 0
    second = gfile.join(folder, "a", "second.txt")
    gfile.copy(first, second)
    assert read(second) == read(first)
    assert gfile.listdir(gfile.join(folder, "a")) == ["b", "second.txt"]
    assert gfile.glob(gfile.join(folder, "a", "*.txt")) == [second]
    assert gfile.glob(gfile.join(folder, "none*")) == []
    assert sorted(gfile.walk(gfile.join(folder, "a"))) == [
        (gfile.join(folder, "a"), ["b"], ["second.txt"]),
        (inner, [], ["first.txt"]),
    ]
    gfile.rename(second, first, overwrite=True)
    assert not gfile.exists(second)
    gfile.remove(first)
    assert not gfile.exists(first)
    gfile.mkdir(gfile.join(folder, "c"))
    gfile.rmtree(folder)
    assert not gfile.exists(folder)


def test_errors_have_tensorflows_kinds(folder) -> None:
    gfile.makedirs(folder)
    absent, present = gfile.join(folder, "absent"), gfile.join(folder, "present")
    write(present, "x")
    for call in (gfile.GFile, gfile.remove, gfile.rmtree, gfile.listdir, gfile.stat):
        with pytest.raises(NotFoundError, match="absent"):
            call(absent)
    with pytest.raises(AlreadyExistsError, match="exists; pass overwrite=True"):
        gfile.copy(present, present)
    gfile.mkdir(gfile.join(folder, "made"))
    with pytest.raises(AlreadyExistsError, match=r"gfile.mkdir: .*made' exists"):
        gfile.mkdir(gfile.join(folder, "made"))


def test_files_are_copied_between_places(tmp_path) -> None:
    url = f"memory://{uuid.uuid4().hex}/file"
    write(tmp_path / "file", "text")
    gfile.copy(tmp_path / "file", url)
    gfile.rename(url, tmp_path / "back")
    assert read(tmp_path / "back") == "text"
    assert not gfile.exists(url)


def test_folders_behind_urls_are_renamed() -> None:
    url = f"memory://{uuid.uuid4().hex}"
    write(f"{url}/a/file", "text")
    gfile.rename(f"{url}/a", f"{url}/b")
    assert read(f"{url}/b/file") == "text"
    assert not gfile.exists(f"{url}/a")


def test_a_file_has_tensorflows_calls(folder) -> None:
    gfile.makedirs(folder)
    path = gfile.join(folder, "text")
    with gfile.GFile(path, "w") as file:
        file.write("hällo\n")
        file.write(tf.constant("world\n"))
    with gfile.GFile(path) as file:
        assert isinstance(file, gfile.GFile)
        assert (file.name, file.mode, file.size()) == (path, "r", 13)
        assert (file.readline(), file.tell()) == ("hällo\n", 7)
        assert (next(file), file.tell(), file.seekable()) == ("world\n", 13, True)
        file.seek(-3, 2)
        assert file.read() == "ld\n"
        file.seek(offset=7)
        assert file.read(n=2) == "wo"
        file.seek(1, 1)
        assert file.read(1) == "l"
        file.seek(position=0)
        assert file.readlines() == ["hällo\n", "world\n"]
        with pytest.raises(StopIteration):
            file.next()
        with pytest.raises(PermissionDeniedError, match="is not open for writing, but with mode"):
            file.write("x")
        with pytest.raises(AttributeError, match="GFile has no attribute _missing"):
            getattr(file, "_missing")  # noqa: B009
    with gfile.GFile(path, "rb") as file:
        assert [len(line) for line in file] == [7, 6]
    with (
        gfile.GFile(path, "a") as file,
        pytest.raises(PermissionDeniedError, match="is not open for reading, but with mode 'a'"),
    ):
        file.read()


def test_arrays_are_saved_and_loaded(folder) -> None:
    gfile.makedirs(folder)
    path = gfile.join(folder, "array.npy")
    with gfile.GFile(path, "wb") as file:
        np.save(file, np.arange(3))
    with gfile.GFile(path, "rb") as file:
        assert np.load(file).tolist() == [0, 1, 2]


def test_patterns_match_as_in_tensorflow(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "d").mkdir()
    for name in ("a1.txt", "a2.txt", ".hidden", "d/a3.txt"):
        (tmp_path / name).touch()
    recorded = {
        "a*.txt": ["./a1.txt", "./a2.txt"],
        "./a*.txt": ["./a1.txt", "./a2.txt"],
        "a[12].txt": ["./a1.txt", "./a2.txt"],
        "d/*.txt": ["d/a3.txt"],
        "*/a*.txt": ["./d/a3.txt"],
        "a1.txt": ["a1.txt"],
        "d": ["d"],
        "no*": [],
        "*": ["./.hidden", "./a1.txt", "./a2.txt", "./d"],
    }
    assert {pattern: gfile.glob(pattern) for pattern in recorded} == recorded
    assert gfile.glob(["d/*", "a1*", "a1.txt"]) == ["d/a3.txt", "./a1.txt", "a1.txt"]
    assert gfile.glob([]) == []
