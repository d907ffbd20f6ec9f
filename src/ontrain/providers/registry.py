"""Providers by name: the ones that come with ontrain and those that other packages add by entry point."""

from __future__ import annotations

import functools
from collections.abc import Callable
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from ontrain.errors import OptionError, nearest
from ontrain.providers.base import ExecutionProvider

__all__ = ["available_providers", "get_provider"]

ENTRY_POINT_GROUP = "ontrain.providers"


def _torch(device: str) -> ExecutionProvider:
    from ontrain.providers.torch import TorchExecutionProvider

    return TorchExecutionProvider(device)


def _reference(device: str) -> ExecutionProvider:
    from ontrain.providers.reference import ReferenceExecutionProvider

    return ReferenceExecutionProvider()


_BUILT_IN: dict[str, Callable[[str], ExecutionProvider]] = {
    "TorchExecutionProvider": _torch,
    "ReferenceExecutionProvider": _reference,
}


def _factories() -> dict[str, Callable[[str], Any]]:
    found: dict[str, Callable[[str], Any]] = dict(_BUILT_IN)
    for entry in entry_points(group=ENTRY_POINT_GROUP):
        found.setdefault(entry.name, functools.partial(_load, entry))
    return found


def _load(entry: EntryPoint, device: str) -> Any:
    return entry.load()(device)


def available_providers() -> list[str]:
    """Return the names of all providers installed, built-in ones first."""
    return list(_factories())


def get_provider(name: str, device: str = "cpu") -> ExecutionProvider:
    """Return a provider by name for a torch device string.

    Raises:
        OptionError: no provider has that name.
    """
    factories = _factories()
    if name not in factories:
        raise OptionError(f"no execution provider {name!r}", way_out=f"known: {nearest(name, factories)}")
    made: ExecutionProvider = factories[name](device)
    return made
