"""A mixture of datasets with a checkpoint in the middle of training."""

import numpy as np
import tensorflow as tf

tf.random.set_seed(7)


def source(start, count):
    return tf.data.Dataset.range(start, start + count).shuffle(count, seed=3).repeat()


mixture = tf.data.Dataset.sample_from_datasets(
    [source(0, 50), source(1000, 50), source(2000, 50)], weights=[0.6, 0.3, 0.1], seed=5
)
mixture = mixture.map(lambda x: {"x": x, "twice": x * 2}).batch(8).prefetch(2)

iterator = iter(mixture)
step = tf.Variable(0)
checkpoint = tf.train.Checkpoint(step=step, iterator=iterator)
manager = tf.train.CheckpointManager(checkpoint, "./tf_ckpts", max_to_keep=2)
checkpoint.restore(manager.latest_checkpoint)
print("Restored" if manager.latest_checkpoint else "Initializing from scratch.")

seen = []
for _ in range(12):
    batch = next(iterator)
    step.assign_add(1)
    seen.append(batch["x"].numpy())
    if int(step) % 4 == 0:
        save_path = manager.save()
        print("Saved checkpoint for step", int(step), save_path)
rest = [next(iterator)["x"].numpy() for _ in range(5)]
print([path.split("/")[-1] for path in manager.checkpoints])
print(batch["twice"].dtype, batch["twice"].shape)
print(all((row["x"] * 2 == row["twice"]).numpy().all() for row in mixture.take(3)))

again = iter(mixture)
other = tf.train.Checkpoint(step=tf.Variable(0), iterator=again)
status = other.restore(tf.train.latest_checkpoint("./tf_ckpts"))
print(int(other.step), all(np.array_equal(next(again)["x"].numpy(), row) for row in rest))
other.restore(manager.checkpoints[0])
print(int(other.step), np.array_equal(next(again)["x"].numpy(), seen[8]))

shares = np.concatenate(seen) // 1000
print(len(seen), set(shares.tolist()) <= {0, 1, 2})
path = checkpoint.save("./tf_ckpts/manual")
print(path)

optional = iterator.get_next_as_optional()
print(bool(optional.has_value()), optional.get_value()["x"].shape)
short = iter(tf.data.Dataset.range(1))
print(next(short).numpy(), bool(short.get_next_as_optional().has_value()))
try:
    short.get_next()
except tf.errors.OutOfRangeError:
    print("end")
print(tf.data.experimental.cardinality(mixture).numpy() == tf.data.INFINITE_CARDINALITY)
