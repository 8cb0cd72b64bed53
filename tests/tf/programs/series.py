"""Time series: windows of a table, split into inputs and labels, normalized and stacked."""

import numpy as np
import tensorflow as tf

COLUMNS = ["T", "p", "wind"]
hours = np.arange(48, dtype=np.float32)
table = np.stack([np.sin(hours / 24 * 2 * np.pi), 1000 + hours, hours % 7], axis=1)
table = table.astype(np.float32)
mean, std = table[:32].mean(axis=0), table[:32].std(axis=0)
normal = (table - mean) / std


class WindowGenerator:
    def __init__(self, input_width, label_width, shift, label_columns=None):
        self.columns = {name: i for i, name in enumerate(COLUMNS)}
        self.label_columns = label_columns
        self.total = input_width + shift
        self.inputs = slice(0, input_width)
        self.labels = slice(self.total - label_width, None)
        self.input_width, self.label_width = input_width, label_width

    def split_window(self, features):
        inputs = features[:, self.inputs, :]
        labels = features[:, self.labels, :]
        if self.label_columns is not None:
            labels = tf.stack(
                [labels[:, :, self.columns[name]] for name in self.label_columns], axis=-1
            )
        inputs.set_shape([None, self.input_width, None])
        labels.set_shape([None, self.label_width, None])
        return inputs, labels

    def make_dataset(self, data, batch_size=4):
        windows = tf.data.Dataset.from_tensor_slices(data)
        windows = windows.window(self.total, shift=4, drop_remainder=True)
        windows = windows.flat_map(lambda window: window.batch(self.total, drop_remainder=True))
        return windows.batch(batch_size).map(self.split_window)


generator = WindowGenerator(6, 2, 2, ["T", "wind"])
dataset = generator.make_dataset(normal)
print(dataset.element_spec[0].dtype, len(list(dataset)))
for inputs, labels in dataset.take(1):
    print(inputs.shape, labels.shape)
    print(np.round(inputs.numpy()[0, :2], 3).tolist(), np.round(labels.numpy()[0], 3).tolist())

mean_absolute = []
for inputs, labels in dataset:
    last = tf.gather(inputs[:, -1, :], [0, 2], axis=-1)
    error = tf.reduce_mean(tf.abs(tf.expand_dims(last, 1) - labels))
    mean_absolute.append(error)
print(np.round(tf.stack(mean_absolute).numpy(), 3).tolist())
print(round(float(tf.reduce_mean(mean_absolute)), 3))


def to_features(window):
    window = tf.ensure_shape(window, [8, 3])
    slope = (window[-1] - window[0]) / tf.cast(tf.shape(window)[0] - 1, tf.float32)
    low, high = tf.math.reduce_min(window, axis=0), tf.math.reduce_max(window, axis=0)
    day = tf.constant(24.0)
    hour = tf.math.floormod(window[0, 1] - 1000.0, day)
    angle = 2.0 * np.pi * hour / day
    return tf.concat([slope, low, high, tf.stack([tf.sin(angle), tf.cos(angle)])], axis=0)


features = (
    tf.data.Dataset.from_tensor_slices(table)
    .window(8, shift=8, drop_remainder=True)
    .flat_map(lambda window: window.batch(8))
    .map(to_features)
)
for row in features.take(2):
    print(np.round(row.numpy(), 3).tolist())

steps = tf.data.Dataset.zip(
    (tf.data.Dataset.from_tensor_slices(hours), tf.data.Dataset.from_tensor_slices(hours).skip(1))
).batch(8, drop_remainder=True)
for now, later in steps.take(1):
    print(tf.reduce_all(later - now == 1.0).numpy(), now.dtype, tf.rank(now).numpy())


def running(state, x):
    state = 0.5 * state + 0.5 * x
    return state, state


smooth = tf.data.Dataset.from_tensor_slices(hours[:6]).scan(tf.constant(0.0), running)
print([float(value) for value in smooth])
total = tf.data.Dataset.from_tensor_slices(hours).reduce(0.0, lambda old, x: old + x)
print(total.numpy())
