"""Parameters whose gradient forward turns off and on: `p.requires_grad_(False)` around a part of it.

Autograd records for each use whether the parameter required a gradient then. A trace holds operators only, so a use
without a gradient reads a detached name of the parameter.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, cast

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from ontrain.capture.source import current_line
from ontrain.errors import CaptureError

__all__ = ["FrozenParameters"]

_SETS = cast("Any", torch.Tensor.requires_grad).__set__
_VIEWS = frozenset({"T", "mT", "H", "mH", "real", "imag"})
"""Properties that are tensors with a gradient."""


class FrozenParameters(TorchFunctionMode):
    """Cuts parameters off from their gradients where forward has turned these off.

    Args:
        module: what is traced, with its parameters as the trace has them.
        inputs: the tensors that forward is called with.

    Attributes:
        followed: the numbers of the inputs that forward has required a gradient of.

    Raises:
        CaptureError: at the end, a parameter requires a gradient and did not before, or the other way round.
    """

    def __init__(self, module: nn.Module, inputs: Sequence[torch.Tensor] = ()) -> None:
        super().__init__()
        self._inputs = {id(tensor): number for number, tensor in enumerate(inputs)}
        self.followed: set[int] = set()
        self._before = {id(p): (name, p, p.requires_grad) for name, p in module.named_parameters()}
        self._lines: dict[int, str | None] = {}
        self._frozen: set[int] = set()

    def __torch_function__(
        self,
        function: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Call the function: with detached names of parameters that are frozen now, if it computes with them."""
        name = getattr(function, "__name__", "")
        if args and id(args[0]) in self._before and (name in ("requires_grad_", "detach_") or function == _SETS):
            result = function(*args, **kwargs or {})
            self._note(args[0])
            return result
        if args and id(args[0]) in self._inputs and (name == "requires_grad_" or function == _SETS):
            result = function(*args, **kwargs or {})
            follow = self.followed.add if args[0].requires_grad else self.followed.discard
            follow(self._inputs[id(args[0])])
            return result
        if self._frozen and _computes(function, name):
            args = [self._cut(value) for value in args]
            kwargs = {key: self._cut(value) for key, value in (kwargs or {}).items()}
        return function(*args, **kwargs or {})

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Make sure that each parameter requires a gradient if it did."""
        leave: Any = super().__exit__
        leave(kind, error, trace)
        if error is not None:
            return
        for place, (name, parameter, before) in self._before.items():
            if parameter.requires_grad != before:
                raise CaptureError(
                    f"forward turns the gradient of parameter {name.removeprefix('module.')!r} "
                    f"{'off' if before else 'on'} and leaves it so",
                    source=self._lines.get(place),
                    reason="which parameters a graph differentiates by is known before forward runs",
                    way_out="set requires_grad before the module is called, or read parameter.detach() in forward",
                )

    def _note(self, parameter: torch.Tensor) -> None:
        place = id(parameter)
        self._lines[place] = current_line()
        frozen = self._before[place][2] and not parameter.requires_grad
        (self._frozen.add if frozen else self._frozen.discard)(place)

    def _cut(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return value.detach() if id(value) in self._frozen else value
        if type(value) in (list, tuple):
            return type(value)(self._cut(item) for item in value)
        return value


def _computes(function: Callable[..., Any], name: str) -> bool:
    """Whether a function's result may have a gradient by its arguments: writes and questions are for the parameter."""
    if name == "__get__":
        return getattr(getattr(function, "__self__", None), "__name__", "") in _VIEWS
    return name != "__set__" and (not name.endswith("_") or name.endswith("__"))
