"""The public surface changes on purpose only: every public name stands in public_api.txt.

After a change that is meant: pytest tests/test_public_api.py --update-public-api, and commit the difference.
"""

from __future__ import annotations

import importlib
import inspect
from pathlib import Path

import pytest

PINNED = Path(__file__).with_name("public_api.txt")
MODULES = (
    "ontrain",
    "ontrain.errors",
    "ontrain.graph",
    "ontrain.functions",
    "ontrain.capture",
    "ontrain.autodiff",
    "ontrain.optim",
    "ontrain.passes",
    "ontrain.providers",
    "ontrain.session",
    "ontrain.session.check",
    "ontrain.checkpoint",
    "ontrain.distributed",
    "ontrain.training",
    "ontrain.training.amp",
    "ontrain.training.api",
    "ontrain.training.artifacts",
    "ontrain.training.data",
    "ontrain.training.inspection",
    "ontrain.training.onnxblock",
    "ontrain.training.optim",
    "ontrain.training.ortmodule",
    "ontrain.training.utils.hooks",
    "ontrain.cli",
)
"""A later public module is added here."""


def public_names() -> list[str]:
    """Return "module.name" for every name that a public module exports."""
    return [f"{name}.{exported}" for name in MODULES for exported in sorted(importlib.import_module(name).__all__)]


def test_public_names_are_the_pinned_ones(request):
    names = public_names()
    if request.config.getoption("--update-public-api"):
        PINNED.write_text("\n".join(names) + "\n")
    pinned = PINNED.read_text().splitlines()
    gone, new = sorted(set(pinned) - set(names)), sorted(set(names) - set(pinned))
    assert (gone, new) == ([], []), "if this is meant, run with --update-public-api and commit public_api.txt"


@pytest.mark.parametrize("module", MODULES)
def test_exported_names_exist_and_are_documented(module):
    imported = importlib.import_module(module)
    assert imported.__doc__
    assert len(set(imported.__all__)) == len(imported.__all__)
    things = {name: getattr(imported, name) for name in imported.__all__}
    made_here = {
        name: member for name, member in things.items()
        if (inspect.isclass(member) or inspect.isfunction(member)) and not member.__module__.startswith("onnxruntime")
    }  # fmt: skip
    assert [name for name, member in made_here.items() if not inspect.getdoc(member)] == []
