"""Input for pre-training a language model: text and Parquet, tokens, a mixture, packed rows.

Four ranks share one job of a service; their positions are merged, and two ranks read the rest.
Together they get exactly the rows that one process would make. The ranks are iterators of this
program here; in training, each is in a process of its own: see torch_ddp.py.

It prints:

    rows of 128 tokens that are 95% full
    4 ranks read 20 batches, then 2 ranks read the other 66
    these are the rows that one process makes: True
"""

import json
import tempfile
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet

import penstock
from penstock.data import AUTOTUNE, Dataset
from penstock.data.experimental import service

END = 256  # the token after each document; a token is a byte here


def write_documents(folder, count):
    random = np.random.default_rng(0)
    texts = ["word " * random.integers(2, 20) + f"{number}" for number in range(count)]
    Path(folder, "web.txt").write_text("\n".join(texts))
    table = pyarrow.table({"title": texts, "text": [text.upper() for text in texts]})
    pyarrow.parquet.write_table(table, Path(folder, "books.parquet"))


def tokenize(text):
    return np.frombuffer(text, np.uint8).astype(np.int32)


def make_batches(folder, rows=8):
    web = penstock.data.TextLineDataset(str(folder / "web.txt"))
    books = Dataset.from_parquet(str(folder / "books.parquet"), columns=["text"])
    sources = {
        "web": (web.map(tokenize, num_parallel_calls=AUTOTUNE), 0.7),
        "books": (books.map(lambda row: tokenize(row["text"]), num_parallel_calls=AUTOTUNE), 0.3),
    }
    mixed = Dataset.mix(sources).shuffle(100, seed=1)  # ends with the first of them
    return mixed.pack(length=128, separator=END).batch(rows)


def open_rank(folder, url, positions=()):
    job = service.distribute("distributed_epoch", url, job_name="pre-training")
    rank = iter(make_batches(folder).apply(job))
    if positions:
        rank.load_state_dict(service.merge_states(positions))
    return rank


def lists_of_rows(batches):
    return sorted(row.tolist() for batch in batches for row in batch["tokens"])


def main(folder, url):
    write_documents(folder, 1000)
    local = list(make_batches(folder))
    full = np.mean([segment > 0 for batch in local[:-1] for segment in batch["segment_ids"]])
    print(f"rows of 128 tokens that are {full:.0%} full")

    ranks = [open_rank(folder, url) for _ in range(4)]
    first = [next(rank) for _ in range(5) for rank in ranks]
    saved = json.dumps([rank.state_dict() for rank in ranks])
    for rank in ranks:
        rank.close()

    ranks = [open_rank(folder, url, json.loads(saved)) for _ in range(2)]
    rest = [batch for rank in ranks for batch in rank]
    print(f"4 ranks read {len(first)} batches, then 2 ranks read the other {len(rest)}")
    same = lists_of_rows(first + rest) == lists_of_rows(local)
    print(f"these are the rows that one process makes: {same}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name, penstock.launch.local(workers=1) as launched:
        main(Path(name), launched.url)
