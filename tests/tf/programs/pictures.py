"""Images of classes: written as JPEG and PNG, decoded, augmented without state, one-hot labels."""

import os

import numpy as np
import tensorflow as tf

CLASSES = ["daisy", "rose", "tulip"]
for number, name in enumerate(CLASSES):
    os.makedirs(f"flowers/{name}")
    for index in range(3):
        pixels = np.full((20 + index, 24, 3), 40 * (number + 1), np.uint8)
        pixels[:10, :, number] = 200
        tf.io.write_file(f"flowers/{name}/{index}.png", tf.io.encode_png(pixels))
jpeg = tf.io.encode_jpeg(np.full((16, 16, 3), 128, np.uint8), quality=95)
tf.io.write_file("grey.jpg", jpeg)
print(tf.io.decode_jpeg(tf.io.read_file("grey.jpg")).shape, bool(tf.io.is_jpeg(jpeg)))

IMAGE_SIZE = 12
files = tf.data.Dataset.list_files("flowers/*/*.png", shuffle=False)
image_count = len(files)


def get_label(path):
    parts = tf.strings.split(path, os.path.sep)
    one_hot = parts[-2] == CLASSES
    return tf.argmax(one_hot)


def decode_image(path):
    image = tf.io.decode_image(tf.io.read_file(path), channels=3, expand_animations=False)
    image = tf.image.convert_image_dtype(image, tf.float32)
    return tf.image.resize(image, [IMAGE_SIZE, IMAGE_SIZE])


def process_path(path):
    return decode_image(path), get_label(path)


images = files.map(process_path, num_parallel_calls=tf.data.AUTOTUNE)
for image, label in images.take(2):
    print(image.shape, image.dtype, label.numpy(), np.round(image.numpy()[0, 0], 3).tolist())

counter = tf.data.experimental.Counter()


def augment(image_label, number):
    image, label = image_label
    seed = tf.stack([tf.cast(number, tf.int32), 7])
    image = tf.image.resize_with_crop_or_pad(image, IMAGE_SIZE + 4, IMAGE_SIZE + 4)
    new_seed = tf.random.split(seed, num=1)[0, :]
    image = tf.image.stateless_random_crop(image, size=[IMAGE_SIZE, IMAGE_SIZE, 3], seed=seed)
    image = tf.image.stateless_random_brightness(image, max_delta=0.2, seed=new_seed)
    image = tf.image.stateless_random_flip_left_right(image, seed)
    return tf.clip_by_value(image, 0, 1), tf.one_hot(label, len(CLASSES))


augmented = tf.data.Dataset.zip((images, counter)).map(augment)
for image, label in augmented.take(3):
    print(np.round(image.numpy().mean(axis=(0, 1)), 3).tolist(), label.numpy().tolist())

batches = augmented.batch(4).prefetch(tf.data.AUTOTUNE)
for batch, labels in batches:
    grey = tf.image.rgb_to_grayscale(batch)
    flipped = tf.image.flip_left_right(batch)
    print(batch.shape, labels.shape, grey.shape, np.round(tf.reduce_mean(flipped).numpy(), 2))


def standardize(image, label):
    image = tf.image.per_image_standardization(image)
    image = tf.transpose(image, [2, 0, 1])
    return image, tf.cast(label, tf.int32)


for image, label in images.map(standardize).skip(7):
    mean, variance = tf.reduce_mean(image), tf.math.reduce_variance(image)
    print(image.shape, label.dtype, abs(mean.numpy()) < 1e-4, np.round(variance.numpy(), 2))


def mix(one, other):
    (first, first_label), (second, second_label) = one, other
    share = 0.25
    labels = share * tf.one_hot(first_label, 3) + (1 - share) * tf.one_hot(second_label, 3)
    return share * first + (1 - share) * second, labels


mixed = tf.data.Dataset.zip((images, images.skip(3))).map(mix)
print([label.numpy().tolist() for _, label in mixed.take(4)])
per_class = images.group_by_window(
    key_func=lambda image, label: label,
    reduce_func=lambda key, window: window.batch(3),
    window_size=3,
)
print([labels.numpy().tolist() for _, labels in per_class], image_count)
