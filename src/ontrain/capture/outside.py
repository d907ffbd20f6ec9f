"""Tensors outside of a module that its forward reads: plain attributes, globals, parameters of a module in a list.

torch.export takes them for constants. Of a parameter it keeps the values only, and of `scale.item()` only the number.
So a trace notes which tensors these were.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from ontrain.capture.queries import QUERIES
from ontrain.internals import without_dispatch_modes

__all__ = ["OutsideTensors", "original_of"]

_CONVERSIONS = frozenset({
    "__array__", "__bool__", "__complex__", "__contains__", "__float__", "__format__", "__index__", "__int__",
    "allclose", "equal", "is_nonzero", "item", "numpy", "tolist",
})  # fmt: skip
"""Functions of tensors that give numbers."""


class OutsideTensors(TorchFunctionMode):
    """Notes parameters that are not the traced module's own, and tensors whose values become numbers.

    While it traces, torch runs what forward does to outside tensors alone: what it writes to these is taken back at the
    end.

    Args:
        module: what is traced.

    Attributes:
        parameters: those that operators get, each once.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.parameters: list[nn.Parameter] = []
        self._converted: dict[int, torch.Tensor] = {}
        self._known = {id(parameter) for parameter in module.parameters()}
        self._written: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def __exit__(self, *failure: Any) -> None:
        """Leave the mode; give the tensors that were written to their values back."""
        leave: Any = super().__exit__
        leave(*failure)
        with torch.no_grad():
            for tensor, before in self._written.values():
                tensor.detach().copy_(before)
        self._written.clear()

    def __torch_function__(
        self,
        function: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Call the function, and note what is among its arguments and in lists of them."""
        named = kwargs or {}
        if function in QUERIES:
            return function(*args, **named)
        self._note(args)
        self._note(named.values())
        name = getattr(function, "__name__", "")
        if _writes(name):
            self._hold(args[:1])
        self._hold([named.get("out")])
        if name in _CONVERSIONS:
            self._converted.update((id(value), value) for value in args if isinstance(value, torch.Tensor))
        return function(*args, **named)

    def _note(self, values: Iterable[Any]) -> None:
        for value in values:
            # The stand-ins for the module's own are of other types.
            if type(value) is nn.Parameter and id(value) not in self._known:
                self._known.add(id(value))
                self.parameters.append(value)
            elif isinstance(value, list | tuple):
                self._note(value)

    def _hold(self, values: Iterable[Any]) -> None:
        """Keep what tensors outside are before they are written to; of a view the whole tensor."""
        for value in values:
            if isinstance(value, list | tuple):
                self._hold(value)
            elif isinstance(value, torch.Tensor) and _has_values(value):
                whole = value if value._base is None else value._base
                if id(whole) not in self._written:
                    with without_dispatch_modes():
                        self._written[id(whole)] = whole, whole.detach().clone()

    def converted(self) -> list[torch.Tensor]:
        """Return the tensors outside of the module whose values became numbers."""
        return [tensor for tensor in self._converted.values() if _has_values(tensor)]


def _writes(name: str) -> bool:
    """Whether a function of tensors by its name writes to its first argument: `add_`, `__iadd__`, `__setitem__`."""
    if name.startswith("__"):
        return name == "__setitem__" or (name.startswith("__i") and name not in ("__index__", "__int__", "__invert__"))
    return name.endswith("_") and name not in ("requires_grad_", "retain_grad_")


def _has_values(tensor: torch.Tensor) -> bool:
    if type(tensor) not in (torch.Tensor, nn.Parameter) or tensor.layout is not torch.strided:
        return False
    try:
        return tensor.data_ptr() != 0
    except RuntimeError:  # of a trace
        return False


def original_of(constant: torch.Tensor, parameters: Iterable[nn.Parameter]) -> torch.Tensor:
    """Return the parameter whose values a program's constant is, or the constant."""
    if constant.layout is torch.strided and constant.numel():
        for parameter in parameters:
            if parameter.data_ptr() == constant.data_ptr() and parameter.shape == constant.shape:
                return parameter
    return constant
