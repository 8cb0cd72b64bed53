"""A time series cut into windows of features and labels."""

import numpy as np
import tensorflow as tf

WINDOW, HORIZON, SHIFT = 6, 2, 3

series = tf.data.Dataset.from_tensor_slices(
    {
        "value": np.sin(np.arange(40, dtype=np.float32)),
        "hour": np.arange(40, dtype=np.int64) % 24,
    }
)
mean = series.reduce(tf.constant(0.0), lambda total, row: total + row["value"]) / 40.0
print(f"{mean.numpy():.5f}")


def make_features(row):
    angle = tf.cast(row["hour"], tf.float32) * (2.0 * np.pi / 24)
    return tf.stack([row["value"] - mean, tf.sin(angle), tf.cos(angle)])


features = series.map(make_features)
windows = features.window(WINDOW + HORIZON, shift=SHIFT, drop_remainder=True)
windows = windows.flat_map(lambda window: window.batch(WINDOW + HORIZON, drop_remainder=True))


def split_window(window):
    inputs, labels = window[:WINDOW, :], window[WINDOW:, 0]
    inputs.set_shape([WINDOW, 3])
    return inputs, tf.expand_dims(labels, -1)


pairs = windows.map(split_window)
print(pairs.element_spec)
for inputs, labels in pairs.batch(4):
    print(inputs.shape, labels.shape, np.round(labels.numpy()[0, :, 0], 4).tolist())

steps = tf.data.Dataset.range(10)
pairs = tf.data.Dataset.zip((steps, steps.skip(1), steps.skip(2)))
for a, b, c in pairs.take(2):
    print(a.numpy(), (b + c).numpy())

for window in steps.window(4, shift=2, stride=2, drop_remainder=True):
    print([item.numpy() for item in window])

overlapping = steps.batch(4, drop_remainder=True).map(lambda batch: (batch[:-1], batch[1:]))
for inputs, labels in overlapping:
    print(inputs.numpy(), labels.numpy())

running = steps.scan(np.int64(0), lambda state, x: (state + x, state + x))
print([total.numpy() for total in running])
print(steps.take_while(lambda x: x < 4).batch(10).get_single_element().numpy())
padded = steps.map(lambda x: tf.fill([tf.cast(x, tf.int32) % 3], x)).padded_batch(4)
for batch in padded:
    print(batch.numpy().tolist())
ragged = steps.map(lambda x: tf.range(x % 3)).ragged_batch(5)
for batch in ragged:
    print(batch.to_list(), tf.reduce_sum(batch, axis=1).numpy())
