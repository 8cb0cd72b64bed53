"""Names of TensorFlow that `penstock.tf` does not have: errors that say what to write instead."""

from __future__ import annotations

import difflib
import functools
from collections.abc import Iterable
from typing import NoReturn

from penstock.missing_names import attribute_error, refuse_names

_FRAMEWORK = "penstock only delivers the input; use your training framework"
_NUMPY = "NumPy works on elements as they are"
_SPARSE = "elements are never sparse; use tf.sparse.to_dense, or ragged rows"
_GENERATOR = "use map(random=True): the function gets a numpy.random.Generator"
_EAGER = "functions always run as they are written"

MODULES = {
    "": _FRAMEWORK,
    "audio": "decode with a library such as soundfile in map",
    "autograph": _EAGER,
    "autograph.experimental": _EAGER,
    "bitwise": "write the operators &, |, ^ and ~",
    "compat": "write TensorFlow 2's name of the function",
    "config": "penstock.config has what strategies need; devices belong to your framework",
    "config.experimental": "devices and their memory belong to your training framework",
    "config.optimizer": "nothing is compiled",
    "config.threading": "Dataset.with_options sets the threads of a dataset",
    "data": "see docs/from-tensorflow.md",
    "data.Dataset": "see docs/from-tensorflow.md",
    "data.experimental": "see docs/from-tensorflow.md",
    "data.experimental.service": "see docs/service.md",
    "debugging": "write an if and raise an exception",
    "errors": "catch the class of tf.errors that the error has, or ValueError, OSError, ...",
    "dtypes": "penstock.dtypes has the dtypes; tf.cast converts",
    "experimental": _FRAMEWORK,
    "feature_column": "transform columns in map, or with keras.layers",
    "image": "Pillow, scikit-image and torchvision work on elements",
    "io": "parse the bytes in Python, in map",
    "io.gfile": "use os and shutil, or fsspec",
    "keras": "import keras; Dataset.as_keras() delivers batches to it",
    "linalg": "numpy.linalg works on elements as they are",
    "lookup": "use a dict in the function",
    "math": "NumPy and scipy.special work on elements as they are",
    "nn": _FRAMEWORK,
    "RaggedTensor": "loop over the rows, or use to_list()",
    "ragged": "loop over the rows: a RaggedTensor is iterable",
    "random": _GENERATOR,
    "random.Generator": _GENERATOR,
    "random.experimental": _GENERATOR,
    "raw_ops": "write the function of tf.math, tf.strings or tf.image instead",
    "signal": "numpy.fft and scipy.signal work on elements as they are",
    "sparse": _SPARSE,
    "strings": "write it with Python's bytes, in tf.py_function",
    "sysconfig": "penstock.__version__ and penstock.config are there",
    "SparseTensor": _SPARSE,
    "Tensor": "a tensor is a NumPy array with NumPy's methods; x.numpy() is a plain one",
    "train": "tf.train.Checkpoint saves iterators and variables; training frameworks have the rest",
    "Variable": "assign to it, to a slice of it (v[0].assign(x)), or use its scatter methods",
    "version": "use tf.__version__",
}
"""What to write instead of a name in a module, or of the module itself."""

INSTEAD = {
    "GradientTape": _FRAMEWORK,
    "Graph": _EAGER,
    "TensorArray": "use a list, and tf.stack",
    "SparseTensorSpec": _SPARSE,
    "NoneTensorSpec": "an element may hold None; its spec is penstock.element.spec.NoneTensorSpec",
    "batch_to_space": _NUMPY,
    "dynamic_stitch": _NUMPY,
    "edit_distance": "use a library such as rapidfuzz in map",
    "fingerprint": "use hashlib, or tf.strings.to_hash_bucket_fast",
    "get_logger": "use logging.getLogger",
    "histogram_fixed_width": "numpy.histogram works on elements as they are",
    "inside_function": _EAGER,
    "is_symbolic_tensor": _EAGER,
    "make_ndarray": "use tf.io.parse_tensor",
    "make_tensor_proto": "use tf.io.serialize_tensor",
    "parallel_stack": "use tf.stack",
    "queue": "datasets are queues: see Dataset.prefetch",
    "realdiv": "use tf.divide",
    "scalar_mul": "write a * x",
    "space_to_batch": _NUMPY,
    "strided_slice": "write x[begin:end:stride]",
    "tensor_scatter_nd_add": "numpy.add.at works on copies of elements",
    "variable_creator_scope": "use Strategy.scope",
    **dict.fromkeys(
        ("qint8", "qint16", "qint32", "quint8", "quint16", "types", "custom_gradient"), _FRAMEWORK
    ),
    "RaggedTensor.from_nested_row_lengths": "use from_nested_row_splits",
    "RaggedTensor.from_nested_value_rowids": "use from_nested_row_splits",
    "RaggedTensor.nested_value_rowids": "use nested_row_splits",
    "data.Dataset.sparse_batch": "use ragged_batch, which makes ragged rows",
    "data.experimental.copy_to_device": "use Dataset.as_torch or Dataset.as_jax",
    "data.experimental.dense_to_sparse_batch": "use dense_to_ragged_batch",
    "data.experimental.from_variant": "pass datasets as Python objects",
    "data.experimental.get_model_proto": "print(iterator.profile())",
    "data.experimental.make_saveable_from_iterator": "use tf.train.Checkpoint, or state_dict()",
    "data.experimental.prefetch_to_device": "use Dataset.as_torch or Dataset.as_jax",
    "data.experimental.to_variant": "pass datasets as Python objects",
    "image.crop_and_resize": "crop with slices, then tf.image.resize",
    "image.draw_bounding_boxes": "Pillow's ImageDraw works on elements",
    "image.extract_patches": "numpy.lib.stride_tricks.sliding_window_view works on elements",
    "image.non_max_suppression": "torchvision.ops.nms works on elements",
    "image.sample_distorted_bounding_box": "draw the box with tf.random.uniform",
    "image.decode_webp": "use Pillow in tf.py_function",
    "io.decode_webp": "use Pillow in tf.py_function",
    "io.decode_json_example": "use json.loads and tf.train.Example in map",
    "io.decode_proto": "parse the bytes with protobuf in map",
    "io.SparseFeature": "use tf.io.VarLenFeature for the indices and for the values",
    "linalg.normalize": "write x / tf.norm(x)",
    "math.erfc": "write 1 - tf.math.erf(x)",
    "random.stateless_binomial": "use numpy.random.default_rng(seed).binomial",
    **dict.fromkeys(
        ("random.Algorithm", "random.experimental.Algorithm"), "every generator is Philox"
    ),
    **dict.fromkeys(
        ("random.create_rng_state", "random.experimental.create_rng_state"),
        "use tf.random.Generator.from_seed(seed).state",
    ),
    "random.experimental.index_shuffle": "Dataset.range(n).shuffle(n, seed) has random access",
    "autograph.experimental.Feature": _EAGER,
    "config.experimental.enable_op_determinism": (
        "datasets are deterministic unless deterministic=False; tf.random.set_seed sets the seed"
    ),
    **dict.fromkeys(
        (
            "config.experimental.enable_tensor_float_32_execution",
            "config.experimental.tensor_float_32_execution_enabled",
        ),
        "NumPy multiplies matrices in full precision",
    ),
    **dict.fromkeys(
        ("config.experimental_connect_to_cluster", "config.experimental_connect_to_host"),
        "strategy workers find each other by TF_CONFIG, torchrun or Slurm",
    ),
    "errors.OperatorNotAllowedInGraphError": "operators work everywhere: nothing is traced",
    "nn.relu6": "write tf.clip_by_value(x, 0, 6)",
    **dict.fromkeys(("nn.crelu", "nn.elu"), _FRAMEWORK),
    "config.experimental.get_memory_growth": "penstock reserves no memory of devices",
    "train.load_checkpoint": "use tf.train.Checkpoint.restore",
    "train.load_variable": "use tf.train.Checkpoint.restore",
}
"""What to write instead of single names."""

OF_VALUES = {
    **dict.fromkeys(
        (
            *("Tensor.graph", "Tensor.op", "Tensor.consumers", "Tensor.value_index"),
            *("Variable.graph", "Variable.op", "Variable.initializer"),
        ),
        _EAGER,
    ),
    **dict.fromkeys(("Tensor.eval", "Variable.eval"), "write x.numpy()"),
    **dict.fromkeys(("Tensor.cpu", "Tensor.gpu"), "use Dataset.as_torch or Dataset.as_jax"),
    "Tensor.name": "values have no names",
    **dict.fromkeys(
        ("Variable.initial_value", "Variable.initialized_value"), "write v.read_value()"
    ),
    "Variable.load": "use assign",
    "Variable.experimental_ref": "use ref",
    "Tensor.experimental_ref": "use ref",
}
"""What to write instead of attributes that TensorFlow's values have."""


class NamespaceType(type):
    """The class of `Namespace`: its absent names say what to write instead."""

    path: str

    def __getattr__(cls, name: str) -> NoReturn:
        raise missing_from_tf(cls.path, name, vars(cls))


class Namespace(metaclass=NamespaceType):
    """The base of classes for small modules of TensorFlow, which have no file here.

    >>> class linalg(Namespace, module="linalg"):
    ...     "A part of `tf.linalg`."
    >>> linalg.inv
    Traceback (most recent call last):
    AttributeError: tf.linalg.inv: not here; numpy.linalg works on elements as they are
    """

    path = ""

    def __init_subclass__(cls, module: str) -> None:
        cls.path = module


def missing_from_tf(module: str, name: str, known: Iterable[str]) -> AttributeError:
    """The error for a name of `penstock.tf`, which TensorFlow may have.

    >>> print(missing_from_tf("linalg", "inv", []))
    tf.linalg.inv: not here; numpy.linalg works on elements as they are
    >>> print(missing_from_tf("math", "reduce_summ", ["reduce_sum"]))
    tf.math.reduce_summ: not here; did you mean reduce_sum?
    """
    path = f"{module}.{name}" if module else name
    if instead := INSTEAD.get(path) or OF_VALUES.get(path):
        return attribute_error(f"tf.{path}: not here; {instead}")
    close = difflib.get_close_matches(name, list(known), 1, 0.85)
    if close and not name.startswith("_"):
        return attribute_error(f"tf.{path}: not here; did you mean {close[0]}?")
    return attribute_error(f"tf.{path}: not here; {MODULES.get(path) or MODULES[module]}")


refuse_names_of_tf = functools.partial(refuse_names, make_error=missing_from_tf)
"""The `__getattr__` of a module of `penstock.tf`, from its path in `tf` and its names."""
