"""PyTorch DDP: two ranks share one job and are killed in mid-epoch; three ranks read the rest.

All ranks read one job of a service: each batch goes to one rank, whatever their number. A
checkpoint has the model and the positions of all ranks, so that any number of ranks resumes it.
A rank that finds no batch, near the end, takes part in the step with no rows.

It prints:

    2 ranks were killed (kill -9) in step 23; the last checkpoint is of step 20
    3 ranks resumed; each of the 1000 rows was trained on once
"""

import os
import signal
import tempfile
from itertools import chain
from pathlib import Path

import numpy as np
import torch
from torch import distributed, multiprocessing
from torch.nn.parallel import DistributedDataParallel

import penstock
from penstock.data.experimental import service

ROWS, FEATURES = 1000, 8


def make_batches(url):
    x = np.random.default_rng(0).normal(size=(ROWS, FEATURES)).astype(np.float32)
    dataset = penstock.data.Dataset.from_tensor_slices((np.arange(ROWS), x, x.sum(1)))
    dataset = dataset.shuffle(ROWS, seed=1).batch(10)
    job = service.distribute("distributed_epoch", url, job_name="training")
    return dataset.apply(job).as_torch()  # device=f"cuda:{rank}" on GPUs


def train(rank, ranks, url, folder, crash_in):
    place = f"file://{folder}/rendezvous-of-{ranks}"
    distributed.init_process_group("gloo", place, rank=rank, world_size=ranks)
    model = DistributedDataParallel(torch.nn.Linear(FEATURES, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batches, step, seen = iter(make_batches(url)), 0, []
    if (folder / "checkpoint.pt").exists():
        saved = torch.load(folder / "checkpoint.pt")
        model.module.load_state_dict(saved["model"])
        batches.load_state_dict(service.merge_states(saved["positions"]))
        step, seen = saved["step"], saved["seen"] if rank == 0 else []
    no_rows = torch.empty(0, dtype=torch.int64), torch.empty(0, FEATURES), torch.empty(0)
    while True:
        ids, x, y = next(batches, no_rows)
        rows = torch.tensor(len(ids))
        distributed.all_reduce(rows)  # the rows of all ranks in this step
        if rows == 0:
            break
        # DDP takes the mean over the ranks; this makes it the mean over the rows.
        loss = ((model(x).squeeze(1) - y) ** 2).sum() * ranks / rows
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        step, seen = step + 1, seen + ids.tolist()
        if step % 10 == 0:
            save(folder / "checkpoint.pt", rank, model, batches, step, seen)
        if step == crash_in:
            os.kill(os.getpid(), signal.SIGKILL)  # kill -9, as of a machine that fails
    save(folder / "end.pt", rank, model, batches, step, seen)
    distributed.destroy_process_group()


def save(path, rank, model, batches, step, seen):
    parts = [None] * distributed.get_world_size() if rank == 0 else None
    distributed.gather_object((batches.state_dict(), seen), parts)
    if rank == 0:
        positions, seen = zip(*parts, strict=True)
        saved = {"model": model.module.state_dict(), "positions": list(positions), "step": step}
        torch.save(saved | {"seen": list(chain(*seen))}, path.with_suffix(".new"))
        os.replace(path.with_suffix(".new"), path)  # a kill leaves a whole checkpoint


def run_ranks(ranks, url, folder, crash_in=None):
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "penstock"])  # imported once for all ranks
    others = (ranks, url, folder, crash_in)
    processes = [context.Process(target=train, args=(rank, *others)) for rank in range(ranks)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name, penstock.launch.local(workers=1) as launched:
        url, folder = launched.url, Path(name)
        run_ranks(2, url, folder, crash_in=23)
        assert torch.load(folder / "checkpoint.pt")["step"] == 20
        print("2 ranks were killed (kill -9) in step 23; the last checkpoint is of step 20")
        run_ranks(3, url, folder)
        assert sorted(torch.load(folder / "end.pt")["seen"]) == list(range(ROWS))
        print(f"3 ranks resumed; each of the {ROWS} rows was trained on once")
