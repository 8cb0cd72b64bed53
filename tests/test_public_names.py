"""Every public name is documented with an example that runs, and the reference describes it."""

import re
import types

import pytest

import penstock.tf as tf
from scripts.site import names

PUBLIC = names.public_names()
DESCRIBED = [each for each in PUBLIC if each.kind != "value"]
# An attribute that the reference shows, because it has a docstring.
METHODS = [
    pytest.param(each, name, function, id=f"{each.path}.{name}")
    for each in DESCRIBED
    if each.kind == "class"
    for name, function in names.methods_of(each.value)
    if function.__doc__
]


def examples_in(text: str | None) -> str:
    """The lines of a docstring that a doctest runs."""
    return "\n".join(re.findall(r"^ *(?:>>>|\.\.\.) .*", text or "", re.MULTILINE))


@pytest.mark.parametrize("name", DESCRIBED, ids=lambda each: each.path)
def test_every_public_name_has_an_example(name: names.Name) -> None:
    assert examples_in(vars(name.value).get("__doc__", name.value.__doc__))


@pytest.mark.parametrize(("owner", "name", "function"), METHODS)
def test_every_method_has_an_example_of_its_own_or_in_its_class(
    owner: names.Name, name: str, function: object
) -> None:
    shown = "\n".join(examples_in(vars(kind).get("__doc__")) for kind in owner.value.__mro__)
    assert examples_in(function.__doc__) or re.search(rf"\.{name}\b", shown)


def test_every_value_is_a_dtype_or_has_a_docstring_in_the_list() -> None:
    values = [each for each in PUBLIC if each.kind == "value"]
    kinds = {each.path for each in values if type(each.value).__name__ != "DType"}
    assert kinds == set(names.VALUES)


PORTED = names.ported_names()


@pytest.mark.parametrize("page", names.PORTED)
def test_the_pages_for_ported_code_have_names(page: str) -> None:
    assert [each for each in PORTED if each.page == page]


def test_every_ported_name_says_what_it_does() -> None:
    assert [each.path for each in PORTED if not each.value.__doc__] == []


def test_every_module_for_ported_code_has_a_page() -> None:
    def find_modules(module: types.ModuleType) -> set[str]:
        parts = [getattr(module, name) for name in module.__all__]
        inner = [part for part in parts if isinstance(part, types.ModuleType)]
        own = [part for part in inner if re.match(r"penstock\.tf\.(?!data)", part.__name__)]
        return {module.__name__}.union(*map(find_modules, own))

    listed = {module for _, modules in names.PORTED.values() for module in modules}
    assert listed == find_modules(tf)  # The names of `tf.data` are those of `penstock.data`.
