"""Calls of whose results torch.export says another dtype than eager gives, spelled out in calls that it is right of."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode

__all__ = ["EagerDtypes"]


class EagerDtypes(TorchFunctionMode):
    """While it is entered, results have eager's dtype where those of torch's tensors without values have not."""

    def __torch_function__(
        self,
        function: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Call what stands in for the function, or the function itself."""
        return _SPELLED_OUT.get(function, function)(*args, **kwargs or {})


def _huber_loss(
    input: torch.Tensor, target: torch.Tensor, reduction: str = "mean", delta: float = 1.0, weight: Any = None
) -> torch.Tensor:
    common = torch.promote_types(input.dtype, target.dtype)
    if weight is not None or common is input.dtype or reduction not in ("mean", "sum", "none"):
        weighted = {} if weight is None else {"weight": weight}
        return functional.huber_loss(input, target, reduction, delta, **weighted)
    loss = functional.huber_loss(input.to(common), target.to(common), "none", delta).to(input.dtype)
    return loss if reduction == "none" else loss.mean() if reduction == "mean" else loss.sum()


def _soft_margin_loss(input: torch.Tensor, target: torch.Tensor, *options: Any, **named: Any) -> torch.Tensor:
    return functional.soft_margin_loss(input, target.to(input.dtype), *options, **named)


def _power(function: Callable[..., Any]) -> Callable[..., Any]:
    def power(input: Any, exponent: Any, **out: Any) -> Any:
        if out or not isinstance(exponent, bool) or getattr(input, "dtype", None) is not torch.bool:
            return function(input, exponent, **out)
        return input.clone() if exponent else torch.ones_like(input)

    return power


_SPELLED_OUT: dict[Callable[..., Any], Callable[..., Any]] = {
    functional.huber_loss: _huber_loss,
    functional.soft_margin_loss: _soft_margin_loss,
    **{function: _power(function) for function in (torch.pow, torch.Tensor.pow, torch.Tensor.__pow__)},
}
