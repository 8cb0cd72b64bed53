"""The jax backend: arrays on JAX's devices.

Without `jax_enable_x64`, JAX has no 64-bit numbers and narrows them to 32 bits, without a warning.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from penstock.delivery import Delivery
from penstock.delivery.jax_berths import Handle
from penstock.delivery.jax_delivery import open_delivery
from penstock.delivery.moving import array_of
from penstock.distribute.backends import jax_global
from penstock.distribute.backends.jax_compiled import run_compiled
from penstock.element.dtypes import to_native

_KINDS = {"cpu": "CPU", "gpu": "GPU", "cuda": "GPU", "rocm": "GPU", "tpu": "TPU"}

_THREADS_OWN = (
    "enable_x64 disable_jit default_device default_matmul_precision debug_nans debug_infs "
    "numpy_dtype_promotion numpy_rank_promotion"
).split()
"""The settings of `jax.config` that each thread has for itself, by their context managers."""


class JaxBackend:
    name = "jax"

    def handles(self, kind: str) -> Sequence[jax.Device]:
        devices = jax.local_devices(backend="cpu") if kind == "CPU" else jax.local_devices()
        return tuple(device for device in devices if _KINDS.get(device.platform) == kind)

    def identify(self, device: object) -> tuple[str, int] | None:
        if not isinstance(device, jax.Device):
            return None
        kind = _KINDS.get(device.platform, "")
        handles = self.handles(kind)
        return (kind, handles.index(device)) if device in handles else None

    def put(self, value: Any, handle: jax.Device) -> Any:
        if isinstance(value, jax.Array):
            return jax.device_put(value, handle)
        array = array_of(value)
        return value if array is None else jax.device_put(to_native(array.copy()), handle)

    def delivery(
        self, handles: Sequence[jax.Device], columns: Sequence[int], ahead: int
    ) -> Delivery:
        return open_delivery(list(map(Handle, handles)), columns, ahead)

    def numpy(self, tensor: Any) -> Any:
        return np.asarray(tensor)[()] if isinstance(tensor, jax.Array) else tensor

    def is_tensor(self, value: object) -> bool:
        return isinstance(value, jax.Array)

    def is_traced(self, value: object) -> bool:
        return isinstance(value, jax.core.Tracer)

    def sum(self, tensor: jax.Array, axis: int | tuple[int, ...]) -> jax.Array:
        return jnp.sum(tensor, axis, dtype=tensor.dtype)

    def divide(self, tensor: jax.Array, count: float) -> jax.Array:
        dtype = tensor.dtype
        if jnp.issubdtype(dtype, jnp.integer):
            dtype = jnp.dtype(jnp.float32) if dtype.itemsize < 4 else jnp.result_type(float)
        return jnp.true_divide(tensor.astype(dtype), count).astype(dtype)

    def concatenate(self, tensors: Sequence[jax.Array], axis: int, handle: jax.Device) -> jax.Array:
        return jnp.concatenate([jax.device_put(tensor, handle) for tensor in tensors], axis)

    def use_device(self, handle: jax.Device) -> AbstractContextManager[Any]:
        entered: AbstractContextManager[Any] = jax.default_device(handle)
        return entered

    # What only this backend has.
    run_compiled = staticmethod(run_compiled)
    to_global = staticmethod(jax_global.to_global)
    from_global = staticmethod(jax_global.from_global)

    def thread_settings(self) -> AbstractContextManager[Any]:
        return _use_settings([(name, getattr(jax.config, f"jax_{name}")) for name in _THREADS_OWN])


@contextmanager
def _use_settings(settings: Sequence[tuple[str, Any]]) -> Iterator[None]:
    with ExitStack() as entries:
        for name, value in settings:
            entries.enter_context(getattr(jax, name)(value))
        yield


BACKEND = JaxBackend()
