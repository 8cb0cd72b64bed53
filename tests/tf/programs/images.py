"""Images in TFRecord files: written, parsed, decoded, augmented and batched."""

import os

import numpy as np
import tensorflow as tf

IMAGE_SIZE = 24
AUTOTUNE = tf.data.AUTOTUNE


def _bytes_feature(value):
    if isinstance(value, type(tf.constant(0))):
        value = value.numpy()
    return tf.train.Feature(bytes_list=tf.train.BytesList(value=[value]))


def _int64_feature(value):
    return tf.train.Feature(int64_list=tf.train.Int64List(value=[value]))


def serialize(image, label, name):
    feature = {
        "image/encoded": _bytes_feature(tf.io.encode_png(image)),
        "image/height": _int64_feature(image.shape[0]),
        "image/class/label": _int64_feature(label),
        "image/filename": _bytes_feature(name.encode()),
        "image/object/bbox": tf.train.Feature(
            float_list=tf.train.FloatList(value=[0.25 * label, 0.5])
        ),
        "image/tags": tf.train.Feature(
            bytes_list=tf.train.BytesList(value=[b"t%d" % i for i in range(label)])
        ),
    }
    return tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString()


for shard in range(3):
    with tf.io.TFRecordWriter(f"train-{shard:05d}-of-00003.tfrecord") as writer:
        for i in range(4):
            label = (shard + i) % 4
            pixels = (np.arange(20 * 30 * 3) * (7 + label) % 251).astype(np.uint8)
            writer.write(serialize(pixels.reshape(20, 30, 3), label, f"{shard}-{i}.png"))

FEATURES = {
    "image/encoded": tf.io.FixedLenFeature([], tf.string),
    "image/class/label": tf.io.FixedLenFeature([], tf.int64, default_value=-1),
    "image/filename": tf.io.FixedLenFeature([], tf.string),
    "image/object/bbox": tf.io.FixedLenFeature([2], tf.float32),
    "image/tags": tf.io.VarLenFeature(tf.string),
    "image/depth": tf.io.FixedLenFeature([], tf.int64, 3),
}


def parse(record):
    example = tf.io.parse_single_example(record, FEATURES)
    image = tf.io.decode_png(example["image/encoded"], channels=3)
    image = tf.image.convert_image_dtype(image, tf.float32)
    image = tf.image.resize(image, [IMAGE_SIZE, IMAGE_SIZE])
    tags = tf.sparse.to_dense(example["image/tags"], default_value="")
    return {
        "image": image,
        "label": tf.cast(example["image/class/label"], tf.int32),
        "name": example["image/filename"],
        "tags": tf.strings.reduce_join(tags, separator="|"),
        "box": tf.clip_by_value(example["image/object/bbox"], 0.0, 0.5),
    }


@tf.function
def augment(example):
    image = tf.image.random_flip_left_right(example["image"])
    image = tf.image.random_crop(image, [IMAGE_SIZE - 4, IMAGE_SIZE - 4, 3])
    image = tf.image.random_brightness(image, max_delta=0.1)
    image = tf.image.random_contrast(image, 0.9, 1.1)
    image = tf.clip_by_value(image, 0.0, 1.0)
    return tf.image.per_image_standardization(image), tf.one_hot(example["label"], 4)


files = tf.data.Dataset.list_files("train-*.tfrecord", shuffle=False)
records = files.interleave(
    tf.data.TFRecordDataset, cycle_length=2, block_length=1, num_parallel_calls=AUTOTUNE
)
examples = records.map(parse, num_parallel_calls=AUTOTUNE)
print(examples.element_spec["label"], examples.element_spec["name"])
for example in examples.take(3):
    print(example["name"].numpy(), example["label"].numpy(), example["tags"].numpy())
    print(example["image"].shape, example["image"].dtype, example["box"].numpy())
    print(f"{tf.reduce_mean(example['image']):.4f}")

train = examples.shuffle(12, seed=1).map(augment).batch(4, drop_remainder=True).prefetch(AUTOTUNE)
labels = []
for images, hot in train:
    print(images.shape, images.dtype, hot.shape, bool(tf.reduce_all(tf.math.is_finite(images))))
    labels += tf.argmax(hot, axis=1).numpy().tolist()
print(sorted(labels))


def parse_batch(batch):
    found = tf.io.parse_example(batch, FEATURES)
    return found["image/class/label"], tf.sparse.to_dense(found["image/tags"], "-")


for label, tags in records.batch(5).map(parse_batch):
    print(label.numpy(), tags.numpy().tolist())
print(len(os.listdir(".")), tf.io.gfile.exists("train-00000-of-00003.tfrecord"))
