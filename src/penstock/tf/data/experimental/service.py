"""`tf.data.experimental.service` for ported code: the same service, and datasets of tensors."""

from typing import Any

from penstock.data.experimental import service as plain
from penstock.tf.missing_operations import refuse_names_of_tf
from penstock.tf.ported_datasets import port

__all__ = list(plain.__all__)


def _name(name: str) -> Any:
    value = getattr(plain, name)
    return port(value) if name in ("distribute", "from_dataset_id", "register_dataset") else value


globals().update({name: _name(name) for name in __all__})

__getattr__ = refuse_names_of_tf("data.experimental.service", __all__)
