"""The contract of backends: the same tests for numpy, torch and jax."""

from __future__ import annotations

import subprocess
import sys
import threading
from typing import Any

import jax
import ml_dtypes
import numpy as np
import pytest

from penstock.distribute.backends import NAMES, Backend, load
from penstock.distribute.reduce import add_tensors
from penstock.element.ragged import Ragged
from penstock.errors import InvalidArgumentError, UnavailableError

NUMBERS = "bool int8 int16 int32 uint8 uint16 uint32 float16 float32 complex64".split()
WIDE = "int64 uint64 float64 complex128".split()
FRAMEWORKS = [name for name in NAMES if name != "numpy"]


@pytest.fixture(params=NAMES)
def backend(request) -> Backend:
    return load(request.param)


def places(backend: Backend) -> Any:
    """The devices that a strategy would use: GPUs if the machine has any."""
    return backend.handles("GPU") or backend.handles("CPU")


def test_values_are_not_traced(backend, place):
    assert not any(map(backend.is_traced, (1, None, np.ones(2), backend.put(np.ones(2), place))))


def test_what_jax_traces_is_traced():
    seen = []
    jax.jit(lambda x: seen.append(load("jax").is_traced(x)))(1.0)
    assert seen == [True]


@pytest.fixture
def place(backend) -> Any:
    return places(backend)[-1]


def align_rows(rows: Any) -> np.ndarray[Any, Any]:
    """A copy of the array at an address whose memory JAX can use without a copy."""
    array = np.asarray(rows)
    raw = np.zeros(array.nbytes + 64, np.uint8)
    start = -raw.__array_interface__["data"][0] % 64
    made = raw[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    made[...] = array
    return made


def same(found: Any, expected: Any) -> None:
    np.testing.assert_array_equal(found, expected)
    assert np.asarray(found).dtype == np.asarray(expected).dtype
    assert np.shape(found) == np.shape(expected)


def test_there_is_a_cpu_and_no_unknown_kind(backend):
    assert len(backend.handles("CPU")) == (8 if backend.name == "jax" else 1)
    assert not backend.handles("FPGA")


def test_only_devices_of_the_backend_have_kinds_and_numbers(backend):
    if backend.name != "numpy":
        for kind in ("CPU", "GPU"):
            named = [backend.identify(handle) for handle in backend.handles(kind)]
            assert named == [(kind, index) for index in range(len(named))]
    for other in ("GPU:0", "cpu-1", 3, None, object()):
        assert backend.identify(other) is None


def test_torch_knows_its_names():
    torch = load("torch")
    assert torch.identify("cuda") == torch.identify("cuda:0") == ("GPU", 0)
    assert torch.identify("cuda:3") == ("GPU", 3)
    assert torch.identify("cpu") == ("CPU", 0)
    assert torch.identify("cuda:x") is None
    import torch as framework

    assert torch.identify(framework.device("cuda", 1)) == ("GPU", 1)
    assert torch.identify(framework.device("meta")) is None


def test_jax_knows_its_devices():
    import jax

    assert load("jax").identify(jax.devices("cpu")[2]) == ("CPU", 2)
    assert load("jax").handles("TPU") == ()


@pytest.mark.parametrize("dtype", NUMBERS)
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0, 2), (2, 3)])
def test_numbers_go_there_and_back(backend, place, dtype, shape):
    array = np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(dtype)
    tensor = backend.put(array, place)
    assert backend.is_tensor(tensor)
    assert tuple(tensor.shape) == shape
    same(backend.numpy(tensor), array[()])


@pytest.mark.parametrize("dtype", WIDE)
def test_wide_numbers_are_narrowed_by_jax_alone(backend, place, dtype):
    narrow = {"int64": "int32", "uint64": "uint32", "float64": "float32"}.get(dtype, "complex64")
    array = np.array([1, 2, 1 << 40], dtype)
    expected = array.astype(narrow) if backend.name == "jax" else array
    same(backend.numpy(backend.put(array, place)), expected)


def test_bfloat16_goes_there_and_back(backend, place):
    array = np.array([[1.5, -2, 0]], ml_dtypes.bfloat16)
    tensor = backend.put(array, place)
    assert "bfloat16" in str(tensor.dtype)
    same(backend.numpy(tensor), array)
    same(backend.numpy(backend.put(array[0, 0], place)), array[0, 0])


def test_arrays_of_any_layout_go_there_and_back(backend, place):
    rows = np.arange(24, dtype=np.int32).reshape(4, 6)
    for array in (rows.T, rows[::-1], rows[:, 1:3], rows[::2, ::3], rows.astype(">i4")):
        found = backend.numpy(backend.put(array, place))
        np.testing.assert_array_equal(found, array)


def test_numpy_leaves_pythons_numbers_alone():
    value = 3
    assert load("numpy").put(value, None) is value


@pytest.mark.parametrize("backend", FRAMEWORKS, indirect=True)
def test_pythons_numbers_are_small_ones(backend, place):
    found = [backend.numpy(backend.put(value, place)).dtype for value in (True, 3, 2.5)]
    assert found == [np.bool_, np.int32, np.float32]


def test_a_tensor_stays_one_and_can_go_elsewhere(backend, place):
    tensor = backend.put(np.arange(3.0, dtype=np.float32), backend.handles("CPU")[0])
    moved = backend.put(tensor, place)
    assert backend.is_tensor(moved)
    same(backend.numpy(moved), np.arange(3.0, dtype=np.float32))
    if backend.name == "jax":
        assert moved.devices() == {place}


@pytest.mark.parametrize("other", NAMES)
@pytest.mark.parametrize("backend", FRAMEWORKS, indirect=True)
def test_tensors_of_other_frameworks_are_taken(place, backend, other):
    given = load(other).put(np.arange(3, dtype=np.int32), load(other).handles("CPU")[0])
    assert backend.is_tensor(backend.put(given, place))


@pytest.mark.parametrize(
    "value",
    [b"word", np.array([b"a", b"b"], object), Ragged.from_rows([[1], [2, 3]]), None, "text"],
)
def test_what_a_framework_lacks_stays_as_it_is(backend, place, value):
    assert backend.put(value, place) is value
    if backend.name != "numpy":
        assert not backend.is_tensor(value)
    assert backend.numpy(value) is value


@pytest.mark.parametrize("backend", FRAMEWORKS, indirect=True)
def test_a_tensor_shares_no_memory_with_the_array_it_was_made_of(backend, place):
    array = align_rows(np.arange(4096, dtype=np.float32))
    tensor = backend.put(array, place)
    array[:] = -1
    same(backend.numpy(tensor), np.arange(4096, dtype=np.float32))


def test_jax_would_have_taken_that_memory_over():
    """Otherwise the test above would prove nothing."""
    import jax

    array = align_rows(np.arange(4096, dtype=np.float32))
    taken = jax.device_put(array, jax.devices("cpu")[0])
    assert taken.unsafe_buffer_pointer() == array.__array_interface__["data"][0]


def tensors(backend, *arrays) -> list[Any]:
    """Puts each array on another device, if there are enough."""
    handles = places(backend)
    return [backend.put(array, handles[i % len(handles)]) for i, array in enumerate(arrays)]


@pytest.mark.parametrize("dtype", ["int32", "float32", "float16", "complex64", "uint8"])
def test_add_keeps_the_dtype_and_changes_nothing_that_it_was_given(backend, place, dtype):
    one, two = np.arange(4).astype(dtype), np.full(4, 5, dtype)
    given = tensors(backend, one, two, two)
    same(backend.numpy(add_tensors(backend, given, place)), one + two + two)
    for tensor, array in zip(given, (one, two, two), strict=True):
        same(backend.numpy(tensor), array)
    same(backend.numpy(add_tensors(backend, given[:1], place)), one)


@pytest.mark.parametrize("dtype", ["int8", "int32", "float32", "float16", "complex64"])
@pytest.mark.parametrize("axis", [0, 1, -1, (0, 1), (0, 2), (2, 0, 1)])
def test_sum_keeps_the_dtype(backend, place, dtype, axis):
    array = np.arange(24).reshape(2, 3, 4).astype(dtype)
    found = backend.numpy(backend.sum(backend.put(array, place), axis))
    same(found, array.sum(axis, dtype=dtype))


def test_sums_of_no_rows_are_zeros(backend, place):
    found = backend.sum(backend.put(np.zeros((0, 3), np.float32), place), 0)
    same(backend.numpy(found), np.zeros(3, np.float32))


@pytest.mark.parametrize("dtype", ["float16", "float32", "complex64"])
def test_divide_keeps_the_dtype_of_fractions(backend, place, dtype):
    array = np.array([1, 2, 5], dtype)
    same(backend.numpy(backend.divide(backend.put(array, place), 2)), array / np.array(2, dtype))
    nan = backend.numpy(backend.divide(backend.put(array, place), float("nan")))
    assert nan.dtype == dtype
    assert np.isnan(nan).all()


@pytest.mark.parametrize("dtype", ["uint8", "int8", "uint16", "int16", "int32", "int64"])
def test_divide_makes_fractions_of_whole_numbers(backend, place, dtype):
    wide = np.float32 if backend.name == "jax" or np.dtype(dtype).itemsize < 4 else np.float64
    found = backend.numpy(backend.divide(backend.put(np.array([1, 2, 5], dtype), place), 2))
    same(found, np.array([0.5, 1, 2.5], wide))


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_concatenate_goes_along_any_axis(backend, place, axis):
    one = np.arange(4, dtype=np.int32).reshape(2, 2)
    given = tensors(backend, one, one + 4, one + 8)
    found = backend.numpy(backend.concatenate(given, axis, place))
    same(found, np.concatenate([one, one + 4, one + 8], axis))


def test_what_is_computed_without_a_device_is_made_on_the_one_entered():
    import jax.numpy
    import torch

    device = load("jax").handles("CPU")[5]
    with load("jax").use_device(device):
        assert jax.numpy.zeros(3).devices() == {device}
    cpu = load("torch").handles("CPU")[0]
    try:
        torch.set_default_device("meta")
        with load("torch").use_device(cpu):
            assert torch.zeros(3).device == cpu
        assert torch.zeros(3).device.type == "meta"
    finally:
        torch.set_default_device(None)
    with load("torch").use_device(torch.device("meta")):
        assert torch.zeros(3).device.type == "meta"
    with load("numpy").use_device(None):
        pass


def elsewhere(call, entered) -> Any:
    """The result of `call` in another thread, with the thread state of this one."""
    found = []

    def run():
        with entered:
            found.append(call())
        found.append(call())

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return found


def test_another_thread_can_enter_the_settings_of_this_one(backend):
    assert elsewhere(lambda: "ran", backend.thread_settings()) == ["ran", "ran"]


def test_torch_carries_gradients_inference_autocast_and_the_device():
    import torch

    def settings():
        grad, inference = torch.is_grad_enabled(), torch.is_inference_mode_enabled()
        cast = torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")
        return grad, inference, *cast, torch.zeros(1).device.type

    plain = settings()
    with torch.no_grad(), torch.autocast("cpu", torch.float16), torch.device("meta"):
        mine = settings()
        assert elsewhere(settings, load("torch").thread_settings()) == [mine, plain]
    with torch.inference_mode():
        assert elsewhere(settings, load("torch").thread_settings())[0][1]
    assert elsewhere(settings, load("torch").thread_settings()) == [plain, plain]


def test_jax_carries_what_its_config_keeps_for_the_thread():
    import jax

    def settings():
        named = "enable_x64", "disable_jit", "default_device", "default_matmul_precision"
        return [getattr(jax.config, f"jax_{name}") for name in named]

    plain = settings()
    device = jax.devices("cpu")[3]
    precise = jax.default_matmul_precision("float32")
    with jax.enable_x64(True), jax.disable_jit(), jax.default_device(device), precise:
        assert elsewhere(settings, load("jax").thread_settings()) == [settings(), plain]


def test_with_64_bits_jax_keeps_wide_numbers():
    import jax

    with jax.enable_x64(True):
        place = load("jax").handles("CPU")[1]
        same(load("jax").numpy(load("jax").put(np.array([1 << 40]), place)), np.array([1 << 40]))
        mean = load("jax").divide(load("jax").put(np.array([1, 2]), place), 2)
        same(load("jax").numpy(mean), np.array([0.5, 1.0]))


def test_torch_tensors_with_gradients_and_conjugates_become_numpy():
    import torch

    weights = torch.ones(2, requires_grad=True)
    same(load("torch").numpy(weights), np.ones(2, np.float32))
    same(load("torch").numpy(torch.tensor([1 + 2j]).conj()), np.array([1 - 2j], np.complex64))


def test_an_unknown_backend_is_refused():
    with pytest.raises(
        InvalidArgumentError, match="must be one of 'numpy', 'torch', 'jax', got 'x'"
    ):
        load("x")


@pytest.mark.parametrize("name", ["torch", "jax"])
def test_a_framework_that_is_not_there_is_named(name):
    code = f"""
import sys
from penstock.distribute.backends import load
sys.modules[{name!r}] = None
load({name!r})
"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert UnavailableError.__name__ in found.stderr
    assert f"pip install 'penstock[{name}]'" in found.stderr
