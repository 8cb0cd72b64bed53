"""The contract of all sources of columns: their elements, their paths, and their errors."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest

from penstock.data import Dataset
from penstock.element.spec import fits
from penstock.errors import DataLossError, OpError
from penstock.plan.codec import decode, encode
from penstock.plan.references import decode_by_reference, encode_by_reference
from tests.effort import spread
from tests.engine.formats.table_samples import SAMPLES, Sample, plain
from tests.integration.clusters import Cluster

FILES = {name: sample for name, sample in SAMPLES.items() if sample.path}
BY_POSITION = {name: sample for name, sample in SAMPLES.items() if sample.has_random_access}
TABLES = {name: sample for name, sample in FILES.items() if sample.has_random_access}

SIGNS = "damaged|complete|not an Arrow|ends|no lines|not a row"
"""How errors describe a file that is cut short."""


@pytest.fixture(params=SAMPLES)
def sample(request: pytest.FixtureRequest) -> Sample:
    return SAMPLES[request.param]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(2) as made:
        yield made


def elements(dataset: Any) -> list[Any]:
    return [plain(element) for element in dataset]


def open_sample(sample: Sample, path: str) -> Dataset:
    """The same source, read from another path."""
    if sample.open is not None:
        return sample.open(path)
    reader = getattr(Dataset, sample.make().__plan__.label)
    made: Dataset = reader(path)
    return made


def test_equals_what_the_other_library_reads(sample: Sample) -> None:
    assert elements(sample.make()) == sample.expected()


def test_the_spec_is_known_and_fits_every_element(sample: Sample) -> None:
    dataset = sample.make()
    assert elements(dataset.map(lambda *x: x[0] if len(x) == 1 else x)) == sample.expected()
    assert all(fits(dataset.element_spec, element) for element in dataset)


@pytest.mark.parametrize("name", [name for name in SAMPLES if name != "torch-iterable"])
def test_batches_have_the_rows_in_order(name: str) -> None:
    batches = SAMPLES[name].make().batch(4)
    assert elements(batches.unbatch()) == SAMPLES[name].expected()


def test_resumes_from_every_element(sample: Sample) -> None:
    dataset, expected = sample.make(), sample.expected()
    for count in range(len(expected) + 1):
        iterator = iter(dataset)
        for _ in range(count):
            next(iterator)
        resumed = iter(sample.make())
        resumed.load_state_dict(iterator.state_dict())
        assert elements(resumed) == expected[count:]


@pytest.mark.parametrize("name", BY_POSITION)
def test_any_element_by_its_position(name: str) -> None:
    sample = BY_POSITION[name]
    dataset, expected = sample.make(), sample.expected()
    assert len(dataset) == len(expected)
    assert [plain(dataset[i]) for i in reversed(range(len(expected)))] == expected[::-1]
    assert elements(dataset[1:7:2]) == expected[1:7:2]


@pytest.mark.parametrize("name", BY_POSITION)
def test_a_shuffle_has_every_element_once(name: str) -> None:
    sample = BY_POSITION[name]
    expected = sample.expected()
    mixed = elements(sample.make().shuffle(100, seed=5))
    assert sorted(map(repr, mixed)) == sorted(map(repr, expected))
    assert mixed != expected


@pytest.mark.parametrize("shards", [2, 3])
def test_shards_have_every_element_once(sample: Sample, shards: int) -> None:
    expected = sample.expected()
    for index in range(shards):
        assert elements(sample.make().shard(shards, index)) == expected[index::shards]


@pytest.mark.parametrize("name", BY_POSITION)
def test_plans_survive_both_codecs(name: str) -> None:
    sample = BY_POSITION[name]
    plan = sample.make().__plan__
    assert elements(Dataset(decode(encode(plan)))) == sample.expected()
    if not plan.functions:
        sent = decode_by_reference(encode_by_reference(plan), ())
        assert elements(Dataset(sent)) == sample.expected()


def test_the_same_through_a_service(sample: Sample, cluster: Cluster) -> None:
    dataset = sample.make().apply(cluster.distribute())
    assert elements(dataset) == sample.expected()


@pytest.mark.parametrize("name", [name for name in FILES if not FILES[name].is_local])
def test_files_at_any_url(name: str) -> None:
    sample = FILES[name]
    url = f"memory://tables/{Path(sample.path).name}"
    with fsspec.open(url, "wb") as file:
        file.write(Path(sample.path).read_bytes())
    assert elements(open_sample(sample, url)) == sample.expected()


@pytest.mark.parametrize("name", FILES)
def test_several_files_are_one_after_the_other(name: str, tmp_path: Path) -> None:
    sample = FILES[name]
    suffix = "".join(Path(sample.path).suffixes)
    for number in range(12):
        shutil.copy(sample.path, tmp_path / f"part-{number:02}{suffix}")
    three = open_sample(sample, str(tmp_path / f"part-{{09..11}}{suffix}"))
    assert elements(three) == sample.expected() * 3
    assert (
        elements(open_sample(sample, str(tmp_path / f"part-*{suffix}"))) == sample.expected() * 12
    )


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_is_cut_short_is_an_error_that_names_it(name: str, tmp_path: Path) -> None:
    sample = FILES[name]
    whole = Path(sample.path).read_bytes()
    path = tmp_path / f"cut{''.join(Path(sample.path).suffixes)}"
    shortest = 1 if name == "tfrecord" else 0  # Without bytes it has no records, and is complete.
    for size in {shortest, 3, len(whole) // 2, len(whole.rstrip(b"\0")) - 2}:
        path.write_bytes(whole[:size])
        with pytest.raises(
            OpError, match=f"{path}.*(damaged|complete|not an Arrow|ends|no lines|not a row)"
        ):
            elements(open_sample(sample, str(path)))


@pytest.mark.parametrize("name", FILES)
def test_another_kind_of_file_is_an_error_that_names_it(name: str, tmp_path: Path) -> None:
    sample = FILES[name]
    path = tmp_path / f"other{''.join(Path(sample.path).suffixes)}"
    path.write_bytes(b"this is text, and no table" * 100)
    with pytest.raises(OpError, match=str(path)):
        elements(open_sample(sample, str(path)))


@pytest.mark.parametrize("name", FILES)
def test_damaged_bytes_are_never_another_kind_of_error(name: str, tmp_path: Path) -> None:
    sample = FILES[name]
    whole = bytearray(Path(sample.path).read_bytes())
    path = tmp_path / f"damaged{''.join(Path(sample.path).suffixes)}"
    for at in spread(range(len(whole)), 30):
        damaged = whole.copy()
        damaged[at] ^= 0xFF
        path.write_bytes(damaged)
        assert error_of(sample, str(path)) in ("", str(path))


def error_of(sample: Sample, path: str) -> str:
    """Which file the error of reading names; empty if there is no error."""
    try:
        elements(open_sample(sample, path))
    except OpError as error:
        return path if path in str(error) else str(error)
    return ""


@pytest.mark.parametrize("name", TABLES)
def test_a_file_that_changed_is_an_error(name: str, tmp_path: Path) -> None:
    sample = TABLES[name]
    path = tmp_path / Path(sample.path).name
    shutil.copy(sample.path, path)
    dataset = open_sample(sample, str(path))
    path.write_bytes(path.read_bytes() + b"more")
    with pytest.raises(OpError, match=f"{path}.* has changed since the dataset was made"):
        elements(dataset)
    path.unlink()
    with pytest.raises(OpError, match=f"{path}.* does not exist here"):
        elements(dataset)


@pytest.mark.parametrize("name", FILES)
def test_missing_files_and_folders_are_errors(name: str, tmp_path: Path) -> None:
    sample = FILES[name]
    with pytest.raises(OpError, match="does not exist"):
        elements(open_sample(sample, str(tmp_path / "missing")))
    folder = r"is a folder; name the files in it|index\.json' does not exist"
    with pytest.raises(OpError, match=folder):
        elements(open_sample(sample, str(tmp_path)))
    with pytest.raises(OpError, match="no file matches"):
        elements(open_sample(sample, str(tmp_path / "*.none")))


def test_a_row_group_that_is_damaged_is_named(tmp_path: Path) -> None:
    whole = bytearray(Path(SAMPLES["parquet-zstd"].path).read_bytes())
    whole[40:1200] = bytes(1160)
    path = tmp_path / "x.parquet"
    path.write_bytes(whole)
    with pytest.raises(DataLossError, match=f"{path}.*row group 0 cannot be read"):
        elements(Dataset.from_parquet(path))
