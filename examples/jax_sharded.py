"""JAX: global batches, sharded over 8 devices, saved and resumed in the middle of an epoch.

A sharding says which rows of a batch go to which device. `as_jax` copies them there, two batches
ahead of the step. The arrays are global: a compiled function sees whole batches. 8 devices of the
CPU stand for 8 GPUs.

It prints:

    a batch of (64, 8) is 8 parts of (8, 8)
    step 25 of 45 is saved; the resumed iterator yields the other 20 steps
    the largest error of a weight is below 0.01: True
"""

import os

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"

import json

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

import penstock

ROWS, FEATURES, BATCH, EPOCHS = 960, 8, 64, 3


def make_batches(sharding, rows=ROWS):
    x = np.random.default_rng(0).normal(size=(rows, FEATURES)).astype(np.float32)
    y = x @ np.arange(FEATURES, dtype=np.float32)
    dataset = penstock.data.Dataset.from_tensor_slices((x, y)).shuffle(rows, seed=1)
    dataset = dataset.batch(BATCH, drop_remainder=True).repeat(EPOCHS)
    return dataset.prefetch(2).as_jax(sharding)


@jax.jit
def train_step(weights, x, y):
    slope = jax.grad(lambda weights: jnp.mean((x @ weights - y) ** 2))(weights)
    return weights - 0.1 * slope


def main():
    mesh = jax.make_mesh((jax.device_count(),), ("batch",))
    by_rows = NamedSharding(mesh, PartitionSpec("batch"))
    on_all = NamedSharding(mesh, PartitionSpec())
    weights = jax.device_put(jnp.zeros(FEATURES), on_all)

    batches = make_batches(by_rows)
    for _ in range(25):
        x, y = next(batches)
        weights = train_step(weights, x, y)
    shards = x.addressable_shards
    print(f"a batch of {x.shape} is {len(shards)} parts of {shards[0].data.shape}")
    saved = json.dumps(batches.state_dict())  # counts what was trained on, not what is in flight

    resumed = make_batches(by_rows)
    resumed.load_state_dict(json.loads(saved))
    rest = 0
    for x, y in resumed:
        weights = train_step(weights, x, y)
        rest += 1
    print(f"step 25 of 45 is saved; the resumed iterator yields the other {rest} steps")
    error = np.abs(weights - np.arange(FEATURES)).max()
    print(f"the largest error of a weight is below 0.01: {error < 0.01}")


if __name__ == "__main__":
    main()
