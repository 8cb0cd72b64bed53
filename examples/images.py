"""Images: a folder of JPEG files, decoded and augmented on all cores, in batches.

`from_image_folder` reads and decodes a file when its image is needed, so that the shuffle of the
whole folder holds nothing but numbers. The calls of `augment` get a random generator of their own:
images are the same in every run, on any number of cores, and new in every epoch.

It prints:

    96 images of cat and dog
    6 batches of (16, 48, 48, 3), uint8
    the same again in another run: True; in the next epoch: False
"""

import tempfile

import numpy as np

from penstock import io
from penstock.data import AUTOTUNE, Dataset

SIZE = 48


def write_images(folder, count, height=64, width=80):
    random = np.random.default_rng(0)
    for number in range(count):
        kind = ("cat", "dog")[number % 2]
        color = random.integers(256, size=3)
        pixels = np.broadcast_to(color, (height, width, 3)) // 2 + random.integers(
            100, size=(height, width, 1)
        )
        io.write_file(f"{folder}/{kind}/{number}.jpg", io.encode_jpeg(pixels.astype(np.uint8)))


def augment(element, random):
    """A random part of the image, mirrored in half of the cases."""
    image = element["image"]
    top, left = (random.integers(extent - SIZE + 1) for extent in image.shape[:2])
    image = image[top : top + SIZE, left : left + SIZE]
    if random.integers(2):
        image = image[:, ::-1]
    return image, element["label"]


def make_batches(folder, batch=16):
    images = Dataset.from_image_folder(folder)
    images = images.shuffle(len(images), seed=1)
    images = images.map(augment, random=True, seed=2, num_parallel_calls=AUTOTUNE)
    return images.batch(batch).prefetch(2)  # .as_torch(device="cuda"), .as_jax(sharding)


def main(folder):
    write_images(folder, 96)
    batches = make_batches(folder)
    names = " and ".join(io.list_classes(folder))
    first = [image for image, label in batches]
    print(f"{sum(map(len, first))} images of {names}")
    print(f"{len(batches)} batches of {first[0].shape}, {first[0].dtype}")
    second = [image for image, label in batches]  # the next epoch
    again = [image for image, label in make_batches(folder)]
    same, other = np.array_equal(first, again), np.array_equal(first, second)
    print(f"the same again in another run: {same}; in the next epoch: {other}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        main(name)
