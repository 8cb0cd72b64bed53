"""A training loop that is interrupted: variables, an iterator and a manager of checkpoints."""

import tensorflow as tf

tf.random.set_seed(3)
xs = tf.reshape(tf.range(32, dtype=tf.float32), [16, 2]) / 32.0
ys = tf.reduce_sum(xs * tf.constant([2.0, -1.0]), axis=1, keepdims=True) + 0.5


class Model:
    def __init__(self):
        self.weights = tf.Variable(tf.zeros([2, 1]), name="weights")
        self.bias = tf.Variable(0.0, name="bias")

    def __call__(self, x):
        return tf.matmul(x, self.weights) + self.bias


def train_step(model, x, y, rate=0.1):
    error = model(x) - y
    count = tf.cast(tf.shape(x)[0], tf.float32)
    model.weights.assign_sub(rate * 2.0 / count * tf.matmul(x, error, transpose_a=True))
    model.bias.assign_sub(rate * 2.0 / count * tf.reduce_sum(error))
    return tf.reduce_mean(tf.square(error))


def make_dataset():
    return tf.data.Dataset.from_tensor_slices((xs, ys)).repeat().batch(4)


def train(steps):
    model, step = Model(), tf.Variable(0, dtype=tf.int64)
    iterator = iter(make_dataset())
    checkpoint = tf.train.Checkpoint(
        step=step, weights=model.weights, bias=model.bias, iterator=iterator
    )
    manager = tf.train.CheckpointManager(checkpoint, "./checkpoints", max_to_keep=2)
    checkpoint.restore(manager.latest_checkpoint)
    if manager.latest_checkpoint:
        print("Restored from", manager.latest_checkpoint.split("/")[-1], "at step", int(step))
    else:
        print("Initializing from scratch.")
    for _ in range(steps):
        x, y = next(iterator)
        loss = train_step(model, x, y)
        step.assign_add(1)
        if int(step) % 3 == 0:
            path = manager.save()
            print(f"Saved checkpoint for step {int(step)}: {path.split('/')[-1]}")
            print(f"loss {loss.numpy():1.4f}, bias {model.bias.numpy():1.4f}")
    return model, step, iterator


train(7)
model, step, iterator = train(5)
print(step.numpy(), next(iterator)[0].numpy()[0].tolist())
print([round(float(one), 4) for one in tf.reshape(model.weights, [-1])])
print(model.weights.shape, model.weights.dtype, model.bias.name, model.bias.trainable)

straight = Model()
count = 0
for x, y in make_dataset().take(11):
    loss = train_step(straight, x, y)
    count += 1
print(count, round(float(loss), 4), round(float(straight.bias), 4))
average = tf.Variable(tf.zeros_like(model.weights))
average.assign(0.5 * model.weights + 0.5 * straight.weights)
print(tf.reduce_sum(average).shape, (model.bias + 1.0).numpy().dtype, average[0, 0].shape)
print(tf.train.latest_checkpoint("./checkpoints").split("/")[-1])
losses = tf.stack([tf.reduce_mean((model(x) - y) ** 2) for x, y in make_dataset().take(4)])
print(losses.shape, bool(tf.reduce_all(losses >= 0.0)), tf.argmax(losses).dtype)
