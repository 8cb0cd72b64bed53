"""The texts of datasets under `penstock.tf`: TensorFlow's class for the last operator."""

from __future__ import annotations

from penstock.plan import nodes
from penstock.plan.nodes import Node

_CLASSES: dict[type[Node], str] = {
    nodes.Slices: "_TensorSliceDataset",
    nodes.FileNames: "_TensorSliceDataset",
    nodes.Tensors: "_TensorDataset",
    nodes.Counter: "_ScanDataset",
    nodes.Generator: "_FlatMapDataset",
    nodes.Saved: "_LoadDataset",
    nodes.RaggedBatch: "_BatchDataset",
    nodes.Enumerate: "_ZipDataset",
    nodes.Choose: "_DirectedInterleaveDataset",
    nodes.Cache: "CacheDataset",
    nodes.Snapshot: "_MapDataset",
    nodes.WithOptions: "_OptionsDataset",
}
"""The classes whose names are not made of those of the nodes."""


def class_of(node: Node) -> str:
    """The name of TensorFlow's class for an operator: `_ParallelMapDataset`."""
    if type(node) in _CLASSES:
        return _CLASSES[type(node)]
    parallel = "Parallel" if getattr(node, "parallel", None) is not None else ""
    return f"_{parallel}{type(node).__name__}Dataset"
