"""DDP with a DataLoader: two ranks are killed in mid-epoch, and three ranks begin it again.

A `DistributedSampler` gives each rank its part of the epoch, for one number of ranks. With another
number no position can be resumed: the epoch begins again, and rows are trained on twice. The
sampler also repeats rows until all ranks have the same number.

It prints:

    2 ranks were killed (kill -9) in step 23; the last checkpoint is of step 20
    3 ranks began again; 400 of the 1000 rows were trained on more than once
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
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

ROWS, FEATURES = 1000, 8


def make_batches(rank, ranks, rows=ROWS):
    x = np.random.default_rng(0).normal(size=(rows, FEATURES)).astype(np.float32)
    arrays = (np.arange(rows), x, x.sum(1))
    dataset = TensorDataset(*map(torch.from_numpy, arrays))
    sampler = DistributedSampler(dataset, ranks, rank, seed=1)
    return DataLoader(dataset, batch_size=10, sampler=sampler)


def train(rank, ranks, folder, crash_in):
    rendezvous = f"file://{folder}/rendezvous-of-{ranks}"
    distributed.init_process_group("gloo", rendezvous, rank=rank, world_size=ranks)
    model = DistributedDataParallel(torch.nn.Linear(FEATURES, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step, seen = 0, []
    if (folder / "checkpoint.pt").exists():
        saved = torch.load(folder / "checkpoint.pt")
        model.module.load_state_dict(saved["model"])
        step, seen = saved["step"], saved["seen"] if rank == 0 else []
    for ids, x, y in make_batches(rank, ranks):
        optimizer.zero_grad()
        loss = ((model(x).squeeze(1) - y) ** 2).mean()
        loss.backward()
        optimizer.step()
        step, seen = step + 1, seen + ids.tolist()
        if step % 10 == 0:
            save(folder / "checkpoint.pt", rank, model, step, seen)
        if step == crash_in:
            os.kill(os.getpid(), signal.SIGKILL)
    save(folder / "end.pt", rank, model, step, seen)
    distributed.destroy_process_group()


def save(path, rank, model, step, seen):
    parts = [None] * distributed.get_world_size() if rank == 0 else None
    distributed.gather_object(seen, parts)
    if rank == 0:
        saved = {"model": model.module.state_dict(), "step": step, "seen": list(chain(*parts))}
        torch.save(saved, path.with_suffix(".new"))
        os.replace(path.with_suffix(".new"), path)


def run_ranks(ranks, folder, crash_in=None):
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch"])
    arguments = [(rank, ranks, folder, crash_in) for rank in range(ranks)]
    processes = [context.Process(target=train, args=each) for each in arguments]
    for process in processes:
        process.start()
    for process in processes:
        process.join()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run_ranks(2, folder, crash_in=23)
        step = torch.load(folder / "checkpoint.pt")["step"]
        print(f"2 ranks were killed (kill -9) in step 23; the last checkpoint is of step {step}")
        run_ranks(3, folder)
        seen = torch.load(folder / "end.pt")["seen"]
        often = int((np.bincount(seen) > 1).sum())
        print(f"3 ranks began again; {often} of the {ROWS} rows were trained on more than once")
