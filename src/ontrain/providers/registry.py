"""Providers by name: the ones that come with ontrain and those that other packages add by entry point."""

from __future__ import annotations

import functools
import inspect
import os
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from ontrain.errors import OptionError, ProviderError, nearest
from ontrain.providers.base import ExecutionProvider

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

__all__ = ["available_providers", "get_provider"]

ENTRY_POINT_GROUP = "ontrain.providers"


_PARTS = ("name", "supports", "create_state", "compile", "device", "capabilities")
"""Of the contract, `ExecutionProvider`."""

Factory = Callable[..., Any]
"""Makes a provider for a torch device string, and options by name."""


def _torch(
    device: str,
    logits_bytes: int | None = None,
    tune: bool | str | None = None,
    cuda_graphs: bool | None = None,
    join: bool | None = None,
) -> ExecutionProvider:
    from ontrain.providers.torch import TorchExecutionProvider

    return TorchExecutionProvider(device, logits_bytes, tune, cuda_graphs, join)


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


@functools.lru_cache(maxsize=1)
def _entries(_: tuple[tuple[str, int], ...]) -> tuple[EntryPoint, ...]:
    """The entry points of the packages in folders as of a time: each package's metadata is read, some 20 ms in all."""
    from importlib.metadata import entry_points  # takes as long as the rest of this file, and few need it

    return tuple(entry_points(group=ENTRY_POINT_GROUP))


def _changed(folder: str) -> int:
    """When something was installed there or taken away."""
    try:
        return os.stat(folder or ".").st_mtime_ns
    except OSError:
        return 0


def _factories() -> dict[str, Factory | EntryPoint]:
    known: dict[str, Factory | EntryPoint] = dict(_BUILT_IN)
    for entry in _entries(tuple((folder, _changed(folder)) for folder in sys.path)):
        known.setdefault(entry.name, entry)
    return known


def _factory(name: str) -> Factory:
    if name in _BUILT_IN:
        return _BUILT_IN[name]
    factories = _factories()
    if name not in factories:
        raise OptionError(f"no execution provider {name!r}", way_out=f"known: {nearest(name, factories)}")
    return _load(factories[name])


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
        ProviderError: another package's provider cannot be loaded, or lacks a part of the contract.
    """
    factory = _factory(name)
    try:
        inspect.signature(factory).bind(device, **(options or {}))
    except TypeError as error:
        _, *known = inspect.signature(factory).parameters
        raise OptionError(
            f"{name} cannot be made with the options {sorted(options or {})}",
            reason=str(error), way_out=f"its options: {', '.join(known) or 'none'}",
        ) from error  # fmt: skip
    provider: ExecutionProvider = factory(device, **(options or {}))
    missing = [part for part in _PARTS if not hasattr(provider, part)]
    if missing:
        raise ProviderError(
            f"{name} is no execution provider", reason=f"{type(provider).__name__} has no {', '.join(missing)}",
            way_out="ontrain/providers/base.py has the contract",
        )  # fmt: skip
    return provider


def _load(entry: Any) -> Factory:
    try:
        factory: Factory = entry.load()
    except (ImportError, AttributeError) as error:
        package = entry.dist.name if entry.dist is not None else "a package"
        raise ProviderError(
            f"{entry.name} of {package} cannot be loaded", reason=f"its entry point is {entry.value}: {error}",
            way_out=f"install what {package} needs, or mend the entry point",
        ) from error  # fmt: skip
    return factory
