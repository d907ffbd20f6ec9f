"""Hooks of all modules while a module is traced: the module's own parts have them, and nothing else has."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

from ontrain.errors import CaptureError
from ontrain.internals import GLOBAL_HOOKS, available, of_torch, replaced

__all__ = ["hooks_of_parts"]


@contextmanager
def hooks_of_parts(module: nn.Module) -> Iterator[None]:
    """Call the hooks of all modules for a module's parts only, those of torch's own trackers for none.

    For the module itself its caller has them called: an ORTModule stands for it. Other threads' modules keep them all.

    Args:
        module: what is traced.
    """
    names = (f"torch.nn.modules.module.{name}" for name in GLOBAL_HOOKS)
    tables = {name: hooks for name in names if (hooks := available(name))}
    if not tables:
        yield
        return
    parts = frozenset(part for part in module.modules() if part is not module)
    within = functools.partial(_for_parts, parts, threading.get_ident())
    with replaced({name: {n: within(hook) for n, hook in table.items()} for name, table in tables.items()}):
        yield


def _for_parts(parts: frozenset[nn.Module], thread: int, hook: Callable[..., Any]) -> Callable[..., Any]:
    def run(part: nn.Module, *args: Any) -> Any:
        if threading.get_ident() != thread:
            return hook(part, *args)
        if part not in parts or of_torch(hook):
            return None
        try:
            return hook(part, *args)
        except CaptureError as error:
            name = getattr(hook, "__qualname__", type(hook).__qualname__)
            raise CaptureError(
                f"the hook {name} of all modules: {error.problem.removeprefix('forward ')}", reason=error.reason,
                way_out="register the hook on the ORTModule, or remove it around the call",
            ) from error  # fmt: skip

    return run
