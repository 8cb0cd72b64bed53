"""Specs that are known without calling a function: what code may rely on for every element."""

from __future__ import annotations

from typing import Any

from penstock.plan.nodes import OPAQUE, Node


def known_spec(node: Node) -> Any:
    """The spec, if it holds for every element because no function was called for it; else None.

    Code must not decide anything by a spec that was found on samples.
    """
    if node.found_spec is not None:
        return None if node.found_spec.sampled else node.found_spec.spec
    inputs = [known_spec(part) for part in node.inputs]
    if node.declared_spec is None and any(spec is None for spec in inputs):
        return None
    spec = node.spec_from(*inputs)
    if spec is OPAQUE:
        return None
    node.keep_spec(spec)
    return spec
