"""Names of submodules that a forward makes of values: `self.experts[f"expert_{index}"]` branches on `index`.

The text of a tensor without a value holds a mark in place of the number. What looks a submodule up by such a name asks
for the number; a text that goes elsewhere, into a log or a message, asks for nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import torch

__all__ = ["keys_of_values"]

_MARK = re.compile(r"<value (\d+) of a tensor>")


def keys_of_values(elsewhere: Callable[[], bool]) -> dict[str, Callable[[Any], Any]]:
    """Return what to make of torch's own functions, by name, during one trace.

    Args:
        elsewhere: whether the calling thread is another than the one that traces.
    """
    numbers: list[tuple[torch.Tensor, str]] = []

    def formatting(own: Callable[..., str]) -> Callable[..., str]:
        def text(value: torch.Tensor, spec: str = "") -> str:
            if elsewhere() or type(value) is torch.Tensor or value.ndim or value.is_floating_point():
                return own(value, spec)
            numbers.append((value, spec))
            return f"<value {len(numbers) - 1} of a tensor>"

        return text

    def number(mark: re.Match[str]) -> str:
        value, spec = numbers[int(mark[1])]
        kind = bool if value.dtype is torch.bool else int
        return format(kind(value.item()), spec)

    def looking_up(own: Callable[..., Any]) -> Callable[..., Any]:
        def look_up(module: Any, name: Any) -> Any:
            if type(name) is str and "<value " in name and not elsewhere():
                name = _MARK.sub(number, name)
            return own(module, name)

        return look_up

    lookups = "nn.ModuleDict.__getitem__", "nn.ModuleDict.__contains__", "fx._symbolic_trace._orig_module_getattr"
    return {"torch.Tensor.__format__": formatting, **{f"torch.{name}": looking_up for name in lookups}}
