"""Images with a DataLoader: JPEG files, decoded and augmented on all cores, in batches.

Random numbers depend on the worker process that draws them, so images differ with the number of
workers. There is no position to save.

It prints:

    96 images of cat and dog
    6 batches of (16, 48, 48, 3), torch.uint8
"""

import os
import tempfile
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset

SIZE = 48


def write_images(folder, count, height=64, width=80):
    random = np.random.default_rng(0)
    for number in range(count):
        path = Path(folder, ("cat", "dog")[number % 2], f"{number}.jpg")
        path.parent.mkdir(exist_ok=True)
        color = random.integers(256, size=3)
        noise = random.integers(100, size=(height, width, 1))
        pixels = np.broadcast_to(color, (height, width, 3)) // 2 + noise
        Image.fromarray(pixels.astype(np.uint8)).save(path, quality=95)


class ImageFolder(Dataset):
    def __init__(self, folder):
        self.names = sorted(path.name for path in Path(folder).iterdir())
        self.files = [
            (path, label)
            for label, name in enumerate(self.names)
            for path in sorted(Path(folder, name).iterdir())
        ]

    def __len__(self):
        return len(self.files)

    def __getitem__(self, number):
        path, label = self.files[number]
        image = np.asarray(Image.open(path).convert("RGB"))
        top, left = (int(torch.randint(extent - SIZE + 1, ())) for extent in image.shape[:2])
        image = image[top : top + SIZE, left : left + SIZE]
        if torch.randint(2, ()):
            image = image[:, ::-1]
        return image.copy(), label


def make_batches(folder, batch=16):
    workers = os.cpu_count()
    return DataLoader(ImageFolder(folder), batch_size=batch, shuffle=True, num_workers=workers)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        write_images(name, 96)
        batches = make_batches(name)
        first = [image for image, label in batches]
        print(f"{sum(map(len, first))} images of {' and '.join(batches.dataset.names)}")
        print(f"{len(batches)} batches of {tuple(first[0].shape)}, {first[0].dtype}")
