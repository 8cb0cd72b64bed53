"""Input for model training: the tf.data language on NumPy.

`penstock.Dataset` is where to begin; `import penstock.tf as tf` runs ported code.

>>> import penstock
>>> [batch.tolist() for batch in penstock.Dataset.range(5).map(lambda x: x * x).batch(2)]
[[0, 1], [4, 9], [16]]
"""

import importlib
from typing import TYPE_CHECKING, Any

from penstock import data, errors, experimental, io, launch, random
from penstock.data import AUTOTUNE, Dataset
from penstock.data.progress import progress
from penstock.data.trace_files import trace
from penstock.element import dtypes
from penstock.element.dtypes import (
    DType,
    as_dtype,
    bool,
    complex64,
    complex128,
    double,
    float16,
    float32,
    float64,
    half,
    int8,
    int16,
    int32,
    int64,
    string,
    uint8,
    uint16,
    uint32,
    uint64,
)
from penstock.element.ragged import Ragged
from penstock.element.spec import (
    OptionalSpec,
    RaggedTensorSpec,
    TensorShape,
    TensorSpec,
    TypeSpec,
)
from penstock.missing_names import missing_from_module
from penstock.shim.arrays import (
    cast,
    constant,
    ones,
    range,
    reduce_mean,
    reduce_sum,
    shape,
    square,
    zeros,
)
from penstock.shim.printing import print
from penstock.shim.signature import function
from penstock.version import VERSION

if TYPE_CHECKING:
    from penstock import config, distribute
    from penstock.distribute.values.variables import (
        Variable,
        VariableAggregation,
        VariableSynchronization,
    )
    from penstock.shim import tf_nest as nest

__version__ = VERSION

__all__ = [
    "config",
    "data",
    "distribute",
    "errors",
    "experimental",
    "io",
    "launch",
    "random",
    "AUTOTUNE",
    "Dataset",
    "progress",
    "trace",
    "Variable",
    "VariableAggregation",
    "VariableSynchronization",
    "Ragged",
    "OptionalSpec",
    "RaggedTensorSpec",
    "TensorShape",
    "TensorSpec",
    "TypeSpec",
    "DType",
    "as_dtype",
    "dtypes",
    "bfloat16",
    "bool",
    "complex64",
    "complex128",
    "double",
    "float16",
    "float32",
    "float64",
    "half",
    "int8",
    "int16",
    "int32",
    "int64",
    "string",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "cast",
    "constant",
    "function",
    "nest",
    "ones",
    "print",
    "range",
    "reduce_mean",
    "reduce_sum",
    "shape",
    "square",
    "zeros",
    "__version__",
]


def __dir__() -> list[str]:
    return list(__all__)


_VARIABLES = "penstock.distribute.values.variables"
_LOADED_LATER = {
    "bfloat16": "penstock.element.dtypes",
    "config": "penstock.config",
    "distribute": "penstock.distribute",
    "nest": "penstock.shim.tf_nest",
    "Variable": _VARIABLES,
    "VariableAggregation": _VARIABLES,
    "VariableSynchronization": _VARIABLES,
}
"""The modules of names that need `distribute` or ml_dtypes, which few programs use."""


def __getattr__(name: str) -> Any:
    """Imports what most programs do not use, at its first use."""
    if name not in _LOADED_LATER:
        raise missing_from_module("penstock", name, __all__)
    module = importlib.import_module(_LOADED_LATER[name])
    globals()[name] = getattr(module, name, module)
    return globals()[name]
