"""The parts of a module as forward meets them while it is traced: themselves."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

from ontrain.internals import available, private, replaced

__all__ = ["own_parts"]

_READ = "torch.fx.experimental.proxy_tensor._ModuleStackTracer.getattr"


@contextmanager
def own_parts(module: nn.Module) -> Iterator[None]:
    """Have forward meet the parts of a module themselves while torch.export traces it.

    torch reads a module with a part at two places through stand-ins, to name the place in each node. A stand-in is
    another object of another class, so `type(part) is nn.Linear`, `part is other` and `scales[part]` would be answered
    otherwise than in eager PyTorch, and the class of each part would hear of a subclass.

    Raises:
        OntrainError: this torch reads a module that has such a part in a way that is not known here.
    """
    if available(_READ) is None and not _has_part_at_two_places(module):
        yield
        return
    standing_in, exporting = private(_READ), threading.get_ident()

    def itself(tracer: Any, name: str, value: object, parameters: dict[str, Any]) -> object:
        if isinstance(value, nn.Module) and threading.get_ident() == exporting:
            return value
        return standing_in(tracer, name, value, parameters)

    with replaced({_READ: itself}):
        yield


def _has_part_at_two_places(module: nn.Module) -> bool:
    return len([*module.named_modules(remove_duplicate=False)]) > len([*module.modules()])
