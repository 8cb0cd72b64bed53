"""A replay buffer from a generator: an agent plays, and trains on batches of what it remembers.

The generator plays some moves, remembers the last thousand, and yields a batch of random ones. The
dataset runs it in a thread of its own, two batches ahead of the training. The agent learns by
Q-learning to walk to the right end of a corridor, from moves that were made at random.

It prints:

    400 batches of 32 moves
    which way to go from each place: > > > > > > >
"""

import numpy as np

import penstock
from penstock.data import Dataset

PLACES, MOVES, CAPACITY = 8, ("<", ">"), 1000


def play(random):
    """Moves without end: (place, move, reward, next place)."""
    place = 0
    while True:
        move = random.integers(2)
        after = min(max(place + 2 * move - 1, 0), PLACES - 1)
        yield place, move, after == PLACES - 1, after
        place = 0 if after == PLACES - 1 else after


def remember(batch, moves_per_batch):
    random = np.random.default_rng(0)
    memory = np.zeros((CAPACITY, 4), np.int32)
    for number, transition in enumerate(play(random)):
        memory[number % CAPACITY] = transition
        played = number + 1
        if played >= batch and played % moves_per_batch == 0:
            yield memory[random.integers(min(played, CAPACITY), size=batch)]


def make_batches(batch=32, moves_per_batch=8):
    return Dataset.from_generator(
        remember,
        args=(batch, moves_per_batch),
        output_signature=penstock.TensorSpec((None, 4), np.int32),
    ).prefetch(2)


def main():
    values = np.zeros((PLACES, len(MOVES)))  # of each move in each place
    batches = 0
    for transitions in make_batches().take(400):
        place, move, reward, after = transitions.T
        best = np.where(after == PLACES - 1, 0, values[after].max(1))
        np.add.at(values, (place, move), 0.1 * (reward + 0.9 * best - values[place, move]))
        batches += 1
    print(f"{batches} batches of {len(transitions)} moves")
    ways = " ".join(MOVES[best] for best in values[:-1].argmax(1))
    print(f"which way to go from each place: {ways}")


if __name__ == "__main__":
    main()
