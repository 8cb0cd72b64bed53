"""`tf.train.Checkpoint` for ported code: its counter is a tensor, and it takes options."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from penstock.data.checkpoints import Checkpoint
from penstock.element.values import short_repr
from penstock.errors import InvalidArgumentError
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


@dataclass
class CheckpointOptions:
    """How `tf.train.Checkpoint` and `CheckpointManager` save.

    Args:
        experimental_io_device: Ignored: this process writes the file.
        experimental_enable_async_checkpoint: Ignored: the file is complete when `save` returns.
        experimental_write_callbacks: Functions that are called after each save, with its path if
            they have a parameter.
        enable_async: Ignored, like `experimental_enable_async_checkpoint`.
        experimental_skip_slot_variables: Ignored: optimizers of frameworks save themselves.
        experimental_sharding_callback: Only None: a checkpoint is one file.

    >>> import tempfile
    >>> from penstock import tf
    >>> options = tf.train.CheckpointOptions(experimental_write_callbacks=[lambda: print("saved")])
    >>> path = tf.train.Checkpoint(step=tf.Variable(0)).save(tempfile.mkdtemp() + "/c", options)
    saved
    """

    experimental_io_device: str | None = None
    experimental_enable_async_checkpoint: bool = False
    experimental_write_callbacks: Sequence[Callable[..., Any]] | None = None
    enable_async: bool = False
    experimental_skip_slot_variables: bool = False
    experimental_sharding_callback: None = None

    def __post_init__(self) -> None:
        if self.experimental_sharding_callback is not None:
            raise InvalidArgumentError(
                "tf.train.CheckpointOptions: experimental_sharding_callback must be None, got "
                f"{short_repr(self.experimental_sharding_callback)}; a checkpoint is one file"
            )
