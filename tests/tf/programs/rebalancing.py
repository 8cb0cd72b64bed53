"""Rare classes made as frequent as the others, in three ways."""

import numpy as np
import tensorflow as tf

rng = np.random.RandomState(0)
classes = (rng.rand(2000) < 0.1).astype(np.int64)
values = rng.randn(2000, 2).astype(np.float32)
creditcard = tf.data.Dataset.from_tensor_slices((values, classes))


def count(counts, batch):
    _, labels = batch
    class_1 = labels == 1
    class_1 = tf.cast(class_1, tf.int32)
    class_0 = labels == 0
    class_0 = tf.cast(class_0, tf.int32)
    counts["class_0"] += tf.reduce_sum(class_0)
    counts["class_1"] += tf.reduce_sum(class_1)
    return counts


counts = (
    creditcard.batch(100)
    .take(10)
    .reduce(initial_state={"class_0": 0, "class_1": 0}, reduce_func=count)
)
counts = np.array([counts["class_0"].numpy(), counts["class_1"].numpy()]).astype(np.float32)
fractions = counts / counts.sum()
print(fractions.round(2))


def share_of_ones(dataset, batches=20):
    labels = [label.numpy() for _, label in dataset.take(batches)]
    return float(np.concatenate(labels).mean())


negative = creditcard.filter(lambda features, label: label == 0).repeat()
positive = creditcard.filter(lambda features, label: label == 1).repeat()
for features, label in positive.take(2):
    print(features.numpy().round(3), label.numpy())
balanced = tf.data.Dataset.sample_from_datasets([negative, positive], [0.5, 0.5]).batch(50)
print(0.4 < share_of_ones(balanced) < 0.6)


def class_func(features, label):
    return label


resampled = creditcard.rejection_resample(
    class_func, target_dist=[0.5, 0.5], initial_dist=fractions
)
resampled = resampled.map(lambda extra_label, features_and_label: features_and_label)
print(0.35 < share_of_ones(resampled.repeat().batch(50)) < 0.65)

alternating = tf.data.Dataset.choose_from_datasets(
    [negative, positive], tf.data.Dataset.range(2).repeat()
)
print([int(label) for _, label in alternating.take(6)])
kept = creditcard.filter(lambda x, y: tf.logical_or(y == 1, tf.random.uniform([]) < 0.1))
print(0.3 < share_of_ones(kept.repeat().batch(50)) < 0.75)

by_class = creditcard.group_by_window(
    key_func=lambda x, y: y,
    reduce_func=lambda key, window: window.batch(8, drop_remainder=True),
    window_size=8,
)
print(all(len(set(labels.numpy().tolist())) == 1 for _, labels in by_class.take(10)))
weights = tf.gather(tf.constant([1.0, 9.0]), classes[:5])
print(weights.numpy())
