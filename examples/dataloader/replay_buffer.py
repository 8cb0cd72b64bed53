"""A replay buffer with a DataLoader: an iterable that plays, remembers, and yields batches.

It prints:

    400 batches of 32 moves
"""

from itertools import islice

import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset

PLACES, CAPACITY = 8, 1000


def play(random):
    """Moves without end: (place, move, reward, next place)."""
    place = 0
    while True:
        move = random.integers(2)
        after = min(max(place + 2 * move - 1, 0), PLACES - 1)
        yield place, move, after == PLACES - 1, after
        place = 0 if after == PLACES - 1 else after


class Memory(IterableDataset):
    def __init__(self, batch, moves_per_batch):
        self.batch, self.moves_per_batch = batch, moves_per_batch

    def __iter__(self):
        random = np.random.default_rng(0)
        memory = np.zeros((CAPACITY, 4), np.int32)
        for number, transition in enumerate(play(random)):
            memory[number % CAPACITY] = transition
            played = number + 1
            if played >= self.batch and played % self.moves_per_batch == 0:
                chosen = random.integers(min(played, CAPACITY), size=self.batch)
                yield torch.from_numpy(memory[chosen])


def make_batches(batch=32, moves_per_batch=8):
    return DataLoader(Memory(batch, moves_per_batch), batch_size=None)


if __name__ == "__main__":
    batches = list(islice(make_batches(), 400))
    print(f"{len(batches)} batches of {len(batches[0])} moves")
