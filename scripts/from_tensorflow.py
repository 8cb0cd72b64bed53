"""Writes docs/from-tensorflow.md: which names of TensorFlow `penstock.tf` has, and what else.

The names of TensorFlow are recorded in tests/tf/cases/names.json. Run it with a Python that has
penstock, after an operation was added: `.venv/bin/python scripts/from_tensorflow.py`.
"""

import json
import textwrap
from pathlib import Path
from typing import Any

from penstock import tf
from penstock.missing_names import STRATEGY_METHODS

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "from-tensorflow.md"
NAMES = ROOT / "tests" / "tf" / "cases" / "names.json"

HEAD = """# From TensorFlow

    import penstock.tf as tf  # instead of: import tensorflow as tf

This page lists the public names of TensorFlow 2.21 around input: which of them are here and the
same, which differ, and what to write instead of the others. `scripts/from_tensorflow.py` writes
it, and a test checks every name. [coming-from-tf-data.md](coming-from-tf-data.md) is the way to
begin, [deviations.md](deviations.md) has the differences in detail.

Values are tensors: NumPy arrays that also answer `.numpy()`, which copies; `np.asarray(x)` does
not. Functions run as they are written; nothing is traced. Tensors of different dtypes are not
added, as in TensorFlow. Strategies hand out tensors where they were given tensors. What is read
from variables is a tensor, too.
"""

_NUMBERS = "other random numbers; in `map` they depend on the element, so that resumes are exact"
_ANY_URL = "files of this machine, and those behind every URL that fsspec knows"
_FILES = "files of penstock's own, for iterators and variables"
_UNUSED = "accepted, without effect"
_NOTHING = "a context that changes nothing"

DIFFERENT = {
    "Tensor": "a subclass of `numpy.ndarray`; a single value has no dimensions",
    "Variable": "see [the tutorial](tutorial-strategy.md)",
    "SparseTensor": "elements are never sparse: what a function returns becomes ragged rows",
    "function": "calls the function; its results are tensors, and `input_signature` is checked",
    "py_function": "calls the function",
    "numpy_function": "calls the function; `Tout` counts as inside of `map`; arrays keep dtypes",
    "cond": "calls one of the functions; `if` is the same",
    "while_loop": "a loop of Python",
    "control_dependencies": _NOTHING,
    "device": _NOTHING,
    "init_scope": _NOTHING,
    "name_scope": _NOTHING,
    "stop_gradient": "the same values",
    "vectorized_map": "the same as `map_fn`",
    "autograph": "decorators that leave functions alone",
    "config": "what strategies need, and settings without effect",
    **{
        f"config.{name}": _UNUSED
        for name in (
            *("run_functions_eagerly", "experimental_run_functions_eagerly"),
            *("set_soft_device_placement", "experimental.set_memory_growth"),
            *("optimizer.set_jit", "optimizer.set_experimental_options"),
            *("threading.set_inter_op_parallelism_threads",),
            *("threading.set_intra_op_parallelism_threads",),
        )
    },
    "config.set_visible_devices": "hides nothing: it accepts all devices, and no GPUs",
    "config.experimental.set_visible_devices": "hides nothing: it accepts all devices, and no GPUs",
    "config.set_logical_device_configuration": "only for the CPU; at any time",
    **{
        f"distribute.cluster_resolver.{name}Resolver": "`master()` is the address of worker 0"
        for name in ("Cluster", "SimpleCluster", "SlurmCluster", "TFConfigCluster")
    },
    "distribute.cluster_resolver.TPUClusterResolver": "raises a ValueError: it finds no TPU",
    "autograph.set_verbosity": _UNUSED,
    "autograph.experimental.set_loop_options": _UNUSED,
    "autograph.experimental.do_not_convert": "the function itself",
    "io.VarLenFeature": "sparse tensors, which leave `map` as ragged rows, or as one dense row",
    "data.Dataset.map": "random operations in the function draw by the element",
    "data.Dataset.save": "Arrow IPC files",
    "data.Dataset.load": "Arrow IPC files",
    "data.Dataset.snapshot": "Arrow IPC files",
    "random.uniform": _NUMBERS,
    "random.normal": _NUMBERS,
    "random.truncated_normal": _NUMBERS,
    "random.categorical": _NUMBERS,
    "random.shuffle": _NUMBERS,
    "random.stateless_categorical": "by the seed alone, but other numbers",
    "random.Generator": "the numbers of TensorFlow; in `map` it draws by the element",
    **{
        f"image.random_{name}": _NUMBERS
        for name in (
            *("brightness", "contrast", "crop", "flip_left_right", "flip_up_down", "hue"),
            *("jpeg_quality", "saturation"),
        )
    },
    **{
        f"{module}.decode_{kind}": note
        for module in ("io", "image")
        for kind, note in (
            ("jpeg", "the exact transform: values may differ by 4"),
            ("png", "grey of colours may differ by 1"),
            ("image", "as `decode_jpeg` and `decode_png`"),
        )
    },
    "strings.regex_replace": "patterns of RE2, without `(?U)` and `\\C`",
    "strings.regex_full_match": "patterns of RE2, without `(?U)` and `\\C`",
    "sparse.to_dense": "takes ragged rows and arrays as well",
    "train.Checkpoint": _FILES,
    "train.CheckpointManager": _FILES,
    "train.latest_checkpoint": _FILES,
    "train.list_variables": _FILES,
    **{f"io.gfile.{name}": _ANY_URL for name in tf.io.gfile.__all__},
}

TITLES = {"": "tf", "distribute.Strategy": "Methods of tf.distribute.Strategy"}
INSTANCES = {
    "data.Dataset": tf.data.Dataset.range(1),
    "RaggedTensor": tf.ragged.constant([[1]]),
}
"""For classes whose instances report missing names."""


def main() -> None:
    PAGE.write_text(text_of_page(), encoding="utf-8")


def text_of_page() -> str:
    names = json.loads(NAMES.read_text(encoding="utf-8"))
    return HEAD + "".join(section(place, found.split()) for place, found in names.items())


def find(path: str) -> Any:
    found: Any = INSTANCES.get(path)
    if found is not None:
        return found
    found = tf
    for name in filter(None, path.split(".")):
        found = getattr(found, name)
    return found


def section(place: str, names: list[str]) -> str:
    """The part of the page about one module or class."""
    here = [name for name in names if hasattr(find(place), name)]
    same = [f"`{name}`" for name in here if path_of(place, name) not in DIFFERENT]
    other = [(name, DIFFERENT[path_of(place, name)]) for name in here if f"`{name}`" not in same]
    absent = [(name, advice(place, name)) for name in names if name not in here]
    parts = [f"\n## {title_of(place)}\n", _paragraph("The same: ", same)]
    parts += [_table("different", "how", other), _table("not here", "instead", absent)]
    return "\n".join(part for part in parts if part)


def title_of(place: str) -> str:
    return TITLES.get(place, f"Methods of tf.{place}" if place in INSTANCES else f"tf.{place}")


def path_of(place: str, name: str) -> str:
    return f"{place}.{name}" if place else name


def advice(place: str, name: str) -> str:
    """What the error for a missing name says to write instead."""
    if place == "distribute.Strategy":
        return STRATEGY_METHODS[name]
    try:
        getattr(find(place), name)
    except AttributeError as error:
        return str(error).partition("; " if "; " in str(error) else ": ")[2]
    raise ValueError(f"tf.{path_of(place, name)} is here")


def _paragraph(begin: str, names: list[str]) -> str:
    if not names:
        return ""
    text = begin + ", ".join(names) + "."
    return textwrap.fill(text, 96, break_on_hyphens=False) + "\n"


def _table(left: str, right: str, rows: list[tuple[str, str]]) -> str:
    """One row for each text: the names that it is about, and the text."""
    if not rows:
        return ""
    by_text: dict[str, list[str]] = {}
    for name, text in rows:
        by_text.setdefault(text, []).append(f"`{name}`")
    lines = [f"| {', '.join(names)} | {text} |" for text, names in by_text.items()]
    return "\n".join([f"| {left} | {right} |", "|---|---|", *lines]) + "\n"


if __name__ == "__main__":
    main()
