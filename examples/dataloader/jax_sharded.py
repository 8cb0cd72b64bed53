"""JAX with a DataLoader: global batches, sharded over 8 devices of the CPU.

The program copies each batch to the devices itself. There is no position to save.

It prints:

    a batch of (64, 8) is 8 parts of (8, 8)
    the largest error of a weight is below 0.01: True
"""

import os

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax.sharding import NamedSharding, PartitionSpec
from torch.utils.data import DataLoader, TensorDataset

ROWS, FEATURES, BATCH, EPOCHS = 960, 8, 64, 3


def make_batches(sharding, rows=ROWS):
    x = np.random.default_rng(0).normal(size=(rows, FEATURES)).astype(np.float32)
    y = x @ np.arange(FEATURES, dtype=np.float32)
    dataset = TensorDataset(torch.from_numpy(x), torch.from_numpy(y))
    loader = DataLoader(dataset, batch_size=BATCH, shuffle=True, drop_last=True)
    for _ in range(EPOCHS):
        for batch in loader:
            yield jax.device_put([part.numpy() for part in batch], sharding)


@jax.jit
def train_step(weights, x, y):
    slope = jax.grad(lambda weights: jnp.mean((x @ weights - y) ** 2))(weights)
    return weights - 0.1 * slope


def main():
    mesh = jax.make_mesh((jax.device_count(),), ("batch",))
    by_rows = NamedSharding(mesh, PartitionSpec("batch"))
    weights = jax.device_put(jnp.zeros(FEATURES), NamedSharding(mesh, PartitionSpec()))
    for x, y in make_batches(by_rows):
        weights = train_step(weights, x, y)
    shards = x.addressable_shards
    print(f"a batch of {x.shape} is {len(shards)} parts of {shards[0].data.shape}")
    error = np.abs(weights - np.arange(FEATURES)).max()
    print(f"the largest error of a weight is below 0.01: {error < 0.01}")


if __name__ == "__main__":
    main()
