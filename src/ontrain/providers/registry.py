"""Providers by name: the ones that come with ontrain and those that other packages add by entry point."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from ontrain.errors import OptionError, nearest
from ontrain.providers.base import ExecutionProvider

__all__ = ["available_providers", "get_provider"]

ENTRY_POINT_GROUP = "ontrain.providers"


Factory = Callable[..., Any]
"""Makes a provider for a torch device string, and options by name."""


def _torch(device: str) -> ExecutionProvider:
    from ontrain.providers.torch import TorchExecutionProvider

    return TorchExecutionProvider(device)


def _reference(device: str) -> ExecutionProvider:
    from ontrain.providers.reference import ReferenceExecutionProvider

    return ReferenceExecutionProvider()


def _onnxruntime(device: str, session_options: Any = None) -> ExecutionProvider:
    from ontrain.providers.onnxruntime import OnnxRuntimeExecutionProvider

    return OnnxRuntimeExecutionProvider(device, session_options)


_BUILT_IN: dict[str, Factory] = {
    "TorchExecutionProvider": _torch,
    "OnnxRuntimeExecutionProvider": _onnxruntime,
    "ReferenceExecutionProvider": _reference,
}


def _factories() -> dict[str, Factory | EntryPoint]:
    found: dict[str, Factory | EntryPoint] = dict(_BUILT_IN)
    for entry in entry_points(group=ENTRY_POINT_GROUP):
        found.setdefault(entry.name, entry)
    return found


def available_providers() -> list[str]:
    """Return the names of all providers installed, built-in ones first."""
    return list(_factories())


def get_provider(name: str, device: str = "cpu", options: Mapping[str, Any] | None = None) -> ExecutionProvider:
    """Return a provider by name for a torch device string.

    Args:
        name: one of `available_providers()`.
        device: a torch device string.
        options: further arguments of the provider by name, such as `session_options` of the onnxruntime provider.

    Raises:
        OptionError: no provider has that name, or it has no such option.
    """
    factories = _factories()
    if name not in factories:
        raise OptionError(f"no execution provider {name!r}", way_out=f"known: {nearest(name, factories)}")
    found = factories[name]
    factory = found.load() if isinstance(found, EntryPoint) else found
    try:
        inspect.signature(factory).bind(device, **(options or {}))
    except TypeError as error:
        _, *known = inspect.signature(factory).parameters
        raise OptionError(
            f"{name} cannot be made with the options {sorted(options or {})}",
            reason=str(error), way_out=f"its options: {', '.join(known) or 'none'}",
        ) from error  # fmt: skip
    made: ExecutionProvider = factory(device, **(options or {}))
    return made
