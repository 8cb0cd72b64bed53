"""The sources of columns that the contract runs over, each with what another library reads."""

import datetime
import decimal
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pandas
import PIL.Image
import polars
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet
import torch.utils.data

from penstock import Ragged
from penstock.data import Dataset, TFRecordDataset
from penstock.engine.formats.files import resolve_paths

GOLDEN = Path(__file__).parent / "golden"


@dataclass(frozen=True)
class Sample:
    """How to make a dataset, and its elements as another library reads them."""

    make: Callable[[], Dataset]
    expected: Callable[[], list[Any]]
    path: str = ""
    """The file that it reads, if it reads one."""
    has_random_access: bool = True
    is_local: bool = False
    """Whether it is read from local disks only."""
    open: Callable[[str], Dataset] | None = None
    """Opens the same source at another path, if calling the method is not enough."""


def plain(value: Any) -> Any:
    """A value of any library, as one of Python's own."""
    match value:
        case dict():
            return {name: plain(part) for name, part in value.items()}
        case list() | tuple():
            return [plain(part) for part in value]
        case Ragged():
            return plain(value.to_list())
        case np.ndarray() | np.generic():
            return plain(value.tolist())
        case str():
            return value.encode()
        case datetime.datetime():
            return round(
                (value - datetime.datetime(1970, 1, 1)) / datetime.timedelta(microseconds=1)
            )
        case datetime.date():
            return (value - datetime.date(1970, 1, 1)).days
        case decimal.Decimal():
            return str(value).encode()
    return value


def golden(name: str) -> str:
    return str(GOLDEN / name)


def people() -> pa.Table:
    with pa.ipc.open_file(golden("people.arrow")) as reader:
        return reader.read_all()


def json_elements() -> list[Any]:
    lines = (GOLDEN / "people.jsonl").read_text(encoding="utf-8").splitlines()
    return [plain(json.loads(line)) for line in lines]


def arrow_sample(name: str) -> Sample:
    path = golden(name)
    is_stream = "stream" in name
    opened = pa.ipc.open_stream if is_stream else pa.ipc.open_file
    return Sample(
        lambda: Dataset.from_arrow(path),
        lambda: plain(opened(path).read_all().to_pylist()),
        path,
    )


def parquet_sample(name: str) -> Sample:
    path = golden(name)
    return Sample(
        lambda: Dataset.from_parquet(path),
        lambda: plain(pa.parquet.read_table(path).to_pylist()),
        path,
    )


def numpy_sample(name: str) -> Sample:
    path = golden(name)
    return Sample(lambda: Dataset.from_numpy(path), lambda: numpy_elements(path), path)


def numpy_elements(path: str) -> list[Any]:
    loaded = np.load(path)
    if isinstance(loaded, np.ndarray) and loaded.dtype.names is None:
        return plain(list(loaded))
    names = loaded.dtype.names if isinstance(loaded, np.ndarray) else loaded.files
    columns = {name: loaded[name] for name in names}
    count = len(next(iter(columns.values())))
    return [{name: plain(column[i]) for name, column in columns.items()} for i in range(count)]


def frame() -> pandas.DataFrame:
    return pandas.DataFrame(
        {
            "id": np.arange(9),
            "x": np.arange(9) / 3,
            "name": [f"n{i}" for i in range(9)],
            "kind": pandas.Categorical(["a", "b", "c"] * 3),
        }
    )


def huggingface() -> datasets.Dataset:
    rows = {
        "id": list(range(13)),
        "text": [f"t{i}" for i in range(13)],
        "ids": [[i] * (i % 3) for i in range(13)],
    }
    return datasets.Dataset.from_dict(rows)


def animals() -> list[Any]:
    """The images of a folder in the order of their paths, as Pillow reads them."""
    return [
        {"image": plain(np.asarray(PIL.Image.open(path))), "label": label, "path": plain(str(path))}
        for label, name in enumerate(("cat", "dog"))
        for path in sorted((GOLDEN / "animals" / name).iterdir())
    ]


class Squares(torch.utils.data.Dataset):  # type: ignore[type-arg]
    def __len__(self) -> int:
        return 9

    def __getitem__(self, number: int) -> Any:
        return {"x": torch.full((2,), float(number)), "y": number * number}


class Counting(torch.utils.data.IterableDataset):  # type: ignore[type-arg]
    def __iter__(self) -> Any:
        return iter([(torch.arange(i), i) for i in range(7)])


def json_sample(name: str) -> Sample:
    path = golden(name)
    return Sample(lambda: Dataset.from_json_lines(path), json_elements, path, False)


def indexed_sample(name: str, open: Callable[[str], Dataset], expected: list[Any]) -> Sample:
    path = golden(name)
    return Sample(lambda: open(path), lambda: expected, path, open=open)


def read_answers(name: str) -> Any:
    return json.loads((GOLDEN / name).read_text(encoding="utf-8"))


def tar_answers(name: str) -> list[Any]:
    """What webdataset read, with keys in UTF-8 and fields as the bytes that they are."""
    return [
        {
            field: value.encode("utf-8" if field == "__key__" else "latin-1")
            for field, value in sample.items()
        }
        for sample in read_answers("tar.json")[name]
    ]


MDS_COLUMNS = ["id", "half", "text", "data", "digits", "price", "grid", "ids"]


def mds_sample(name: str, count: int) -> Sample:
    """One shard, with the columns of which batches can be made."""
    rows = read_answers("mds.json")[:count]
    expected = [
        {name: row[name] if name != "data" else row[name].encode("latin-1") for name in MDS_COLUMNS}
        for row in rows
    ]
    return indexed_sample(
        name, lambda path: Dataset.from_mds(path, columns=MDS_COLUMNS), plain(expected)
    )


SAMPLES: dict[str, Sample] = {
    "json-lines": json_sample("people.jsonl"),
    "json-lines-gzip": json_sample("people.jsonl.gz"),
    "json-lines-zstd": json_sample("people.jsonl.zst"),
    "parquet": parquet_sample("people.parquet"),
    "parquet-zstd": parquet_sample("people.zstd.parquet"),
    "parquet-polars": parquet_sample("polars.parquet"),
    "arrow": arrow_sample("people.arrow"),
    "arrow-stream": arrow_sample("plain.stream.arrow"),
    "arrow-stream-dictionary": arrow_sample("people.stream.arrow"),
    "feather": arrow_sample("people.feather"),
    "arrow-table": Sample(
        lambda: Dataset.from_arrow(people()), lambda: plain(people().to_pylist())
    ),
    "tfrecord": indexed_sample(
        "records.tfrecord",
        lambda path: TFRecordDataset(resolve_paths(path, "test"), index=True),
        [record.encode("latin-1") for record in read_answers("records.json")],
    ),
    "tar": indexed_sample(
        "shard.tar", lambda path: Dataset.from_tar(path, index=True), tar_answers("shard.tar")
    ),
    "array-record": Sample(
        lambda: Dataset.from_array_record(golden("records.array_record")),
        lambda: [record.encode("latin-1") for record in read_answers("array_record.json")],
        golden("records.array_record"),
        is_local=True,
    ),
    "lance": Sample(
        lambda: Dataset.from_lance(golden("people.lance")),
        lambda: plain(read_answers("lance.json")),
    ),
    "mds": mds_sample("mds/shard.00000.mds", 7),
    "mds-zstd": mds_sample("mds-zstd/shard.00000.mds.zstd", 7),
    "npy": numpy_sample("grid.npy"),
    "npy-fortran": numpy_sample("columns.npy"),
    "npy-records": numpy_sample("records.npy"),
    "npz": numpy_sample("arrays.npz"),
    "npz-compressed": numpy_sample("packed.npz"),
    "pandas": Sample(
        lambda: Dataset.from_pandas(frame()), lambda: plain(frame().to_dict("records"))
    ),
    "polars": Sample(
        lambda: Dataset.from_polars(polars.from_pandas(frame())),
        lambda: plain(polars.from_pandas(frame()).to_dicts()),
    ),
    "huggingface": Sample(
        lambda: Dataset.from_huggingface(huggingface()), lambda: plain(list(huggingface()))
    ),
    "huggingface-indices": Sample(
        lambda: Dataset.from_huggingface(huggingface().shuffle(seed=3).select(range(2, 9))),
        lambda: plain(list(huggingface().shuffle(seed=3).select(range(2, 9)))),
    ),
    "huggingface-files": Sample(
        lambda: Dataset.from_huggingface(datasets.load_from_disk(golden("people.datasets"))),
        json_elements,
    ),
    "image-folder": Sample(
        lambda: Dataset.from_image_folder(golden("animals")), animals, is_local=True
    ),
    "huggingface-iterable": Sample(
        lambda: Dataset.from_huggingface(huggingface().to_iterable_dataset()),
        lambda: plain(list(huggingface())),
        has_random_access=False,
    ),
    "torch": Sample(
        lambda: Dataset.from_torch(Squares()),
        lambda: [{"x": [float(i)] * 2, "y": i * i} for i in range(9)],
    ),
    "torch-iterable": Sample(
        lambda: Dataset.from_torch(Counting()),
        lambda: [[list(range(i)), i] for i in range(7)],
        has_random_access=False,
    ),
}
