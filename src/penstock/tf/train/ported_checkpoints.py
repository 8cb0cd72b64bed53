"""`tf.train.Checkpoint` for ported code: its counter is a tensor."""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock.data.checkpoints import Checkpoint
from penstock.tf.values import as_tensor


class PortedCheckpoint(Checkpoint):
    """Saves and restores iterators, variables and other checkpoints; see `penstock.tf.train`.

    >>> from penstock import tf
    >>> tf.train.Checkpoint(step=tf.Variable(0)).save_counter.numpy()
    np.int64(0)
    """

    @property
    def save_counter(self) -> Any:
        """How often `save` was called."""
        return as_tensor(np.int64(self._saves))
