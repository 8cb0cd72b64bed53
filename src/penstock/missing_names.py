"""Names that penstock does not have: errors that say what to write instead."""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable, Iterable
from typing import NoReturn, ParamSpec, TypeVar

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")

_PORTED = "ported code finds it in `import penstock.tf as tf`"
_OTHERS = "TensorFlow's names are in `import penstock.tf as tf`"
_NUMPY = f"elements are NumPy values, so compute with NumPy; {_PORTED}"
_FRAMEWORK = "penstock only delivers the input; use your training framework"

_INSTEAD = {
    "strings": f"elements are bytes; write x.lower(), or x.decode() for a str; {_PORTED}",
    "image": f"decode with penstock.io.decode_image; resize with Pillow in map; {_PORTED}",
    "audio": "decode with a library such as soundfile in map",
    "py_function": f"functions are Python already; pass yours to map; {_PORTED}",
    "numpy_function": f"functions are Python already; pass yours to map; {_PORTED}",
    "Tensor": f"values are NumPy arrays; use numpy.ndarray; {_PORTED}",
    "convert_to_tensor": "values are NumPy arrays; use numpy.asarray",
    "is_tensor": "values are NumPy arrays; use isinstance(x, numpy.ndarray)",
    "RaggedTensor": f"use penstock.Ragged; {_PORTED}",
    "ragged": f"use penstock.Ragged; {_PORTED}",
    "sparse": "use dense arrays or penstock.Ragged",
    "SparseTensor": "use dense arrays or penstock.Ragged",
    "SparseTensorSpec": "use dense arrays or penstock.Ragged",
    "lookup": f"use a dict in the function that you pass to map; {_PORTED}",
    "cond": "functions are Python; write if",
    "while_loop": "functions are Python; write while",
    "one_hot": f"write numpy.eye(depth)[x]; {_PORTED}",
    "train": f"a position is saved with iterator.state_dict(); {_PORTED}",
    "DataLoader": "use Dataset.batch(n).as_torch(), which delivers batches to PyTorch",
    "keras": "import keras; Dataset.as_keras() delivers batches to it",
    "Module": f"use the modules of your training framework; {_PORTED}",
    "IndexedSlices": f"pass indices and values as a pair; {_PORTED}",
    "executing_eagerly": "functions are Python and always run as they are written",
    **dict.fromkeys(
        (
            "math linalg reduce_max reduce_min reduce_any reduce_all reshape concat stack unstack "
            "expand_dims squeeze transpose tile pad gather boolean_mask where argmax argmin equal "
            "less greater add subtract multiply divide abs sqrt exp sin cos maximum minimum "
            "clip_by_value fill eye linspace zeros_like ones_like split reverse roll sort argsort "
            "unique identity size rank sequence_mask cumsum round floor ceil not_equal "
            "logical_and logical_or acos acosh add_n as_string asin asinh assert_equal "
            "assert_greater assert_less assert_rank atan atan2 atanh bitcast "
            "broadcast_dynamic_shape broadcast_static_shape broadcast_to case clip_by_norm "
            "complex control_dependencies cosh debugging dynamic_partition einsum ensure_shape "
            "floordiv foldl foldr gather_nd get_static_value greater_equal group identity_n "
            "init_scope less_equal log logical_not map_fn matmul meshgrid name_scope negative "
            "newaxis no_op norm pow reduce_logsumexp reduce_prod repeat reverse_sequence rsqrt "
            "saturate_cast scan scatter_nd searchsorted shape_n sigmoid sign sinh slice "
            "switch_case tan tanh tensor_scatter_nd_update tensordot timestamp truediv "
            "truncatediv truncatemod unique_with_counts unravel_index vectorized_map Assert "
            "autograph "
        ).split(),
        _NUMPY,
    ),
    **dict.fromkeys(
        "nn optimizers losses metrics GradientTape saved_model summary compat "
        "stop_gradient device Graph".split(),
        _FRAMEWORK,
    ),
}


_CSV = "use penstock.data.experimental.CsvDataset, or make_csv_dataset for batches of columns"
_COLUMNS = "the elements are dicts of the columns; make them what you need in map"
_SPLIT = "choose elements by their numbers: select(numbers)"
_TORCH = 'as_torch(device="cuda") delivers tensors'

_OF_OTHER_DATA = {
    **dict.fromkeys(
        ("state_dict", "load_state_dict", "epoch", "position"),
        "an iterator has it: iterator = iter(dataset)",
    ),
    **dict.fromkeys(("to_list", "numpy", "to_numpy"), "use list(dataset.as_numpy_iterator())"),
    "shape": "element_spec has the shapes",
    "dtype": "element_spec has the dtypes",
    **dict.fromkeys(("from_csv", "read_csv"), _CSV),
    **dict.fromkeys(
        ("from_list", "from_dict", "from_array", "from_arrays", "from_items"),
        "use Dataset.from_tensor_slices",
    ),
    **dict.fromkeys(("from_folder", "from_directory"), "use Dataset.from_image_folder"),
    **dict.fromkeys(("from_text", "from_text_files"), "use penstock.data.TextLineDataset"),
    **dict.fromkeys(("from_tfrecord", "from_tfrecords"), "use penstock.data.TFRecordDataset"),
    "from_iterable": "use Dataset.from_generator, or Dataset.from_torch for a class with items",
    "from_webdataset": "use Dataset.from_tar",
    "distribute": "dataset.apply(penstock.data.experimental.service.distribute("
    '"distributed_epoch", "local://2")) computes it in other processes',
    "num_elements": "write len(dataset), or dataset.cardinality()",
    "assert_cardinality": "dataset.apply(penstock.data.experimental.assert_cardinality(n))",
    **dict.fromkeys(("column_names", "columns", "features"), "element_spec has the names"),
    **dict.fromkeys(("remove_columns", "rename_column", "select_columns"), _COLUMNS),
    **dict.fromkeys(("train_test_split", "random_split", "split"), _SPLIT),
    **dict.fromkeys(("to", "cuda", "set_format", "with_format"), _TORCH),
}

_PARALLEL = (
    "map(..., num_parallel_calls=AUTOTUNE) calls its function on all cores, and "
    "as_torch(num_workers=8) calls the functions of all maps in eight processes"
)
_COLLATE = (
    "batch stacks elements of one shape, padded_batch pads them, ragged_batch keeps their lengths; "
    "a map behind it can change the batches"
)

_ARGUMENTS_OF_OTHERS = {
    "drop_last": "write drop_remainder=True",
    "collate_fn": _COLLATE,
    **dict.fromkeys(("num_workers", "num_proc", "num_threads"), _PARALLEL),
    **dict.fromkeys(("shuffle", "sampler"), "write .shuffle(buffer_size) before it"),
    **dict.fromkeys(("pin_memory", "device"), _TORCH),
    "batched": "map(..., vectorized=True) gets many elements at once; or map behind batch",
    "batch_size": "write .batch(batch_size) before it",
    "prefetch_factor": "write .prefetch(batches) behind it",
}

_DEVICES = "devices and their memory belong to your training framework"
_DELIVER = "use Dataset.as_torch or Dataset.as_jax"
_SINGLE_VALUES = "pass datasets as Python objects"

_IN_MODULES = {
    "config.experimental": f"{_DEVICES}; {_PORTED}",
    "data.experimental.copy_to_device": _DELIVER,
    "data.experimental.prefetch_to_device": _DELIVER,
    "data.experimental.dense_to_sparse_batch": "use dense_to_ragged_batch",
    "data.experimental.from_variant": _SINGLE_VALUES,
    "data.experimental.to_variant": _SINGLE_VALUES,
    "data.experimental.get_model_proto": "print(iterator.profile())",
    "data.experimental.make_saveable_from_iterator": "use iterator.state_dict()",
}
"""What to write instead of names in modules of `penstock`."""

_DISTRIBUTE = {
    **dict.fromkeys(
        ("CollectiveCommunication", "CollectiveHints"),
        "leave the options out: torch or JAX decides",
    ),
    "ParameterServerStrategy": "use MultiWorkerMirroredStrategy",
    "CentralStorageStrategy": "use MirroredStrategy",
    "Server": "workers find each other by TF_CONFIG, torchrun or Slurm",
    "coordinator": "use MultiWorkerMirroredStrategy",
    "partitioners": "use the sharding of your training framework",
    **dict.fromkeys(
        (
            *("GCEClusterResolver", "KubernetesClusterResolver"),
            *("KubernetesExecutableLocation", "UnionResolver"),
        ),
        "pass all addresses to SimpleClusterResolver, or set TF_CONFIG",
    ),
    "rpc": "use a library for remote calls",
    **dict.fromkeys(
        ("PreemptionCheckpointHandler", "PreemptionWatcher", "TerminationConfig"),
        "save iterator.state_dict() in a handler of SIGTERM",
    ),
}

STRATEGY_METHODS = {
    **dict.fromkeys(
        ("make_dataset_iterator", "make_input_fn_iterator"), "experimental_distribute_dataset"
    ),
    **dict.fromkeys(("unwrap", "group"), "experimental_local_results"),
    **dict.fromkeys(("experimental_run", "colocate_vars_with"), "run"),
    **dict.fromkeys(("configure", "update_config_proto"), "nothing: there are no sessions"),
}
"""Methods that strategies of TensorFlow have for its version 1, and what to call instead."""


def explain_arguments(method: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
    """Decorates a method that users of other libraries call with arguments that it does not have.

    >>> @explain_arguments
    ... def batch(batch_size): ...
    >>> batch(4, drop_last=True)
    Traceback (most recent call last):
    TypeError: batch has no argument drop_last: write drop_remainder=True
    """
    own = inspect.signature(method).parameters

    @functools.wraps(method)
    def call(*args: _Arguments.args, **named: _Arguments.kwargs) -> _Result:
        __tracebackhide__ = True
        for name in named:
            if name not in own and name in _ARGUMENTS_OF_OTHERS:
                instead = _ARGUMENTS_OF_OTHERS[name]
                raise TypeError(f"{method.__qualname__} has no argument {name}: {instead}")
        return method(*args, **named)

    return call


def missing_from_distribute(module: str, name: str, known: Iterable[str]) -> AttributeError:
    """The error for a name of `distribute`, which TensorFlow may have.

    >>> print(missing_from_distribute("distribute", "coordinator", []))
    distribute.coordinator does not exist: use MultiWorkerMirroredStrategy
    """
    return missing(module, name, known, _DISTRIBUTE.get(name))


def missing_from_strategy(strategy: str, name: str, known: Iterable[str]) -> AttributeError:
    """The error for an attribute of a strategy, which TensorFlow's may have.

    >>> print(missing_from_strategy("MirroredStrategy", "unwrap", []))
    MirroredStrategy.unwrap does not exist: call experimental_local_results
    """
    instead = STRATEGY_METHODS.get(name)
    if instead is not None and ":" not in instead:
        instead = f"call {instead}"
    return missing(strategy, name, known, instead)


def missing_from_module(module: str, name: str, known: Iterable[str]) -> AttributeError:
    """The error for a name of `penstock` or of a public module of it, which TensorFlow may have.

    >>> print(missing_from_module("penstock", "strings", []))
    penstock.strings does not exist: elements are bytes; write x.lower(), ...
    >>> print(missing_from_module("data.experimental", "to_variant", []))
    data.experimental.to_variant does not exist: pass datasets as Python objects
    >>> print(missing_from_module("io", "decode_raw", []))
    io.decode_raw does not exist; TensorFlow's names are in `import penstock.tf as tf`
    """
    path = f"{module}.{name}"
    instead = _INSTEAD.get(name) if module == "penstock" else _IN_MODULES.get(path)
    if instead is None and not _closest(name, tuple(known)):
        return attribute_error(f"{path} does not exist; {_OTHERS}")
    return missing(module, name, known, instead)


def refuse_names(
    module: str,
    known: Iterable[str],
    make_error: Callable[[str, str, Iterable[str]], AttributeError] = missing_from_module,
) -> Callable[[str], NoReturn]:
    """The `__getattr__` of a public module, whose errors say what to write instead."""

    def refuse(name: str) -> NoReturn:
        raise make_error(module, name, known)

    return refuse


def missing_from_dataset(
    name: str, known: Iterable[str], asker: str = ""
) -> AttributeError | TypeError:
    """The error for `Dataset.name`, which another kind of data may have, for a module that asks.

    The name may be asked of the class, as `from_csv` is, or of an object.

    >>> print(missing_from_dataset("dtype", []))
    Dataset.dtype does not exist: element_spec has the dtypes
    """
    if name == "__array__" and asker.startswith("keras."):
        # With an AttributeError, Keras would refuse the dataset in its own words.
        return TypeError("Keras cannot read a Dataset; write model.fit(dataset.as_keras())")
    return missing("Dataset", name, known, _OF_OTHER_DATA.get(name))


def missing(
    owner: str, name: str, known: Iterable[str], instead: str | None = None
) -> AttributeError:
    """The error for a name that may be misspelt, unless it is known what to write `instead`.

    >>> print(missing("Dataset", "shufffle", ["shuffle", "map"]))
    Dataset.shufffle does not exist; did you mean shuffle?
    """
    if instead is not None:
        return attribute_error(f"{owner}.{name} does not exist: {instead}")
    close = _closest(name, tuple(known))
    hint = f"; did you mean {close}?" if close else ""
    return attribute_error(f"{owner}.{name} does not exist{hint}")


@functools.lru_cache(1024)
def _closest(name: str, known: tuple[str, ...]) -> str:
    """The public name that was probably meant. Programs ask for a name again and again."""
    if name.startswith("_"):
        return ""
    public = [other for other in known if not other.startswith("_")]
    return next(iter(difflib.get_close_matches(name, public, 1)), "")


def attribute_error(text: str) -> AttributeError:
    """The error. It has a name, or Python would add its own guess to the text."""
    return AttributeError(text, name="", obj="")
