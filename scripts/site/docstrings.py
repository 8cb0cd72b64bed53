"""For the reference: the extension of griffe that puts doctests of docstrings into fences.

griffe reads the docstrings for mkdocstrings; mkdocs.yml names this file.
"""

import sys
from pathlib import Path
from typing import Any

import griffe

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from scripts.site.fences import fence_examples


class FenceExamples(griffe.Extension):
    """Changes every docstring once, when griffe has read it."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = fence_examples(obj.docstring.value)
