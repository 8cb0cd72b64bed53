"""Names that penstock does not have: errors that say what to write instead."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

_NUMPY = "elements are NumPy values, so compute with NumPy"
_FRAMEWORK = "penstock only delivers the input; use your training framework"

_INSTEAD = {
    "strings": "elements are bytes; write x.lower(), or x.decode() for a str",
    "image": "decode with penstock.io.decode_image; resize and crop with Pillow or NumPy in map",
    "audio": "decode with a library such as soundfile in map",
    "py_function": "functions are Python already; pass yours to map",
    "numpy_function": "functions are Python already and get NumPy values; pass yours to map",
    "Tensor": "values are NumPy arrays; use numpy.ndarray",
    "convert_to_tensor": "values are NumPy arrays; use numpy.asarray",
    "is_tensor": "values are NumPy arrays; use isinstance(x, numpy.ndarray)",
    "RaggedTensor": "use penstock.Ragged",
    "ragged": "use penstock.Ragged",
    "sparse": "use dense arrays or penstock.Ragged",
    "SparseTensor": "use dense arrays or penstock.Ragged",
    "SparseTensorSpec": "use dense arrays or penstock.Ragged",
    "lookup": "use a dict in the function that you pass to map",
    "cond": "functions are Python; write if",
    "while_loop": "functions are Python; write while",
    "one_hot": "write numpy.eye(depth)[x]",
    "train": "a position is saved with iterator.state_dict(); Examples are in penstock.io",
    "keras": "import keras; Dataset.as_keras() delivers batches to it",
    "executing_eagerly": "functions are Python and always run as they are written",
    **dict.fromkeys(
        "math linalg reduce_max reduce_min reduce_any reduce_all reshape concat stack unstack "
        "expand_dims squeeze transpose tile pad gather boolean_mask where argmax argmin equal less "
        "greater add subtract multiply divide abs sqrt exp sin cos maximum minimum clip_by_value "
        "fill eye linspace zeros_like ones_like split reverse roll sort argsort unique identity "
        "size rank sequence_mask cumsum round floor ceil not_equal logical_and logical_or".split(),
        _NUMPY,
    ),
    **dict.fromkeys(
        "nn optimizers losses metrics GradientTape Module saved_model summary compat "
        "stop_gradient device Graph".split(),
        _FRAMEWORK,
    ),
}


def missing_from_penstock(name: str, known: Iterable[str]) -> AttributeError:
    """The error for `penstock.name`, which TensorFlow may have.

    >>> print(missing_from_penstock("strings", []))
    penstock.strings does not exist: elements are bytes; write x.lower(), or x.decode() for a str
    """
    if name in _INSTEAD:
        return AttributeError(f"penstock.{name} does not exist: {_INSTEAD[name]}")
    return missing("penstock", name, known)


def missing(owner: str, name: str, known: Iterable[str]) -> AttributeError:
    """The error for a name that may be misspelt.

    >>> print(missing("Dataset", "shufffle", ["shuffle", "map"]))
    Dataset.shufffle does not exist; did you mean shuffle?
    """
    public = [other for other in known if not other.startswith("_")]
    close = difflib.get_close_matches(name, public, 1) if not name.startswith("_") else []
    hint = f"; did you mean {close[0]}?" if close else ""
    return AttributeError(f"{owner}.{name} does not exist{hint}")
