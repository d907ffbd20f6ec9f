"""Docstrings of public names describe the arguments that the signature has: the reference is made of both."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.test_public_api import MODULES


def callables_of(module: str) -> Iterator[tuple[str, Callable[..., Any], str]]:
    """Name, signature's owner and docstring of each public function, class and method of a module."""
    imported = importlib.import_module(module)
    for name in imported.__all__:
        exported = getattr(imported, name)
        if inspect.isfunction(exported):
            yield name, exported, inspect.getdoc(exported) or ""
        elif inspect.isclass(exported) and exported.__module__.startswith("ontrain"):
            yield name, exported, exported.__doc__ or ""
            for member, method in vars(exported).items():
                if inspect.isfunction(method) and not member.startswith("_"):
                    yield f"{name}.{member}", inspect.unwrap(method), method.__doc__ or ""


def described(docstring: str) -> list[str]:
    """The entries of the section "Args", stars aside."""
    section = re.search(r"^Args:\n((?:    .*\n|\n)*)", inspect.cleandoc(docstring) + "\n", re.MULTILINE)
    return re.findall(r"^    \**([^\s:][^:\n]*):", section[1], re.MULTILINE) if section else []


@pytest.mark.parametrize("module", MODULES)
def test_arguments_that_a_docstring_describes_are_in_the_signature(module):
    wrong = [
        f"{name}: {argument}"
        for name, function, docstring in callables_of(module)
        for argument in described(docstring)
        if argument not in inspect.signature(function).parameters
    ]
    assert not wrong, "one entry an argument, by its name: make docs refuses any other"


def test_entries_are_found_one_by_one():
    assert described(
        "Do.\n\n    Args:\n        a: one\n            with: more.\n        **b: two.\n\n    Raises:\n        C: no.\n"
    ) == ["a", "b"]
    assert described("Do.\n\n    Args:\n        a, b: both.\n") == ["a, b"] and described("Do.") == []
