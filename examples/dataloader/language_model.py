"""Input for pre-training a language model with a DataLoader: an iterable that mixes and packs.

Reading, mixing, shuffling and packing are code of the program. There is no position to save, and
no other number of ranks to resume with.

It prints:

    87 batches of (8, 128)
"""

import tempfile
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
from torch.utils.data import DataLoader, IterableDataset

END = 256  # the token after each document; a token is a byte here


def write_documents(folder, count):
    random = np.random.default_rng(0)
    texts = ["word " * random.integers(2, 20) + f"{number}" for number in range(count)]
    Path(folder, "web.txt").write_text("\n".join(texts))
    table = pyarrow.table({"title": texts, "text": [text.upper() for text in texts]})
    pyarrow.parquet.write_table(table, Path(folder, "books.parquet"))


def read_web(folder):
    with open(folder / "web.txt", "rb") as lines:
        for line in lines:
            yield line.rstrip(b"\n")


def read_books(folder):
    file = pyarrow.parquet.ParquetFile(folder / "books.parquet")
    for batch in file.iter_batches(columns=["text"]):
        for text in batch["text"].to_pylist():
            yield text.encode()


class PackedRows(IterableDataset):
    def __init__(self, folder, length=128, open_rows=16, buffer=100):
        self.folder, self.length, self.open_rows, self.buffer = folder, length, open_rows, buffer

    def mix(self):
        random = np.random.default_rng(1)
        sources = [read_web(self.folder), read_books(self.folder)]
        while True:
            text = next(sources[int(random.random() < 0.3)], None)
            if text is None:
                return
            yield np.append(np.frombuffer(text, np.uint8), [END]).astype(np.int32)

    def shuffle(self):
        random, held = np.random.default_rng(2), []
        for tokens in self.mix():
            held.append(tokens)
            if len(held) > self.buffer:
                number = random.integers(len(held))
                held[number], held[-1] = held[-1], held[number]
                yield held.pop()
        random.shuffle(held)
        yield from held

    def __iter__(self):
        rows = []  # of each, the documents
        for tokens in self.shuffle():
            for row in rows:
                if sum(map(len, row)) + len(tokens) <= self.length:
                    row.append(tokens)
                    break
            else:
                rows.append([tokens])
                if len(rows) > self.open_rows:
                    yield self.finish(rows.pop(0))
        yield from map(self.finish, rows)

    def finish(self, documents):
        lengths = [len(tokens) for tokens in documents]
        padding = (0, self.length - sum(lengths))
        return {
            "tokens": np.pad(np.concatenate(documents), padding),
            "segment_ids": np.pad(np.repeat(range(1, len(lengths) + 1), lengths), padding),
            "positions": np.pad(np.concatenate([np.arange(n) for n in lengths]), padding),
        }


def make_batches(folder, rows=8):
    return DataLoader(PackedRows(folder), batch_size=rows)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        write_documents(name, 1000)
        batches = list(make_batches(Path(name)))
        print(f"{len(batches)} batches of {tuple(batches[0]['tokens'].shape)}")
