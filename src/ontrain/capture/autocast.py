"""What torch.autocast makes of recurrent layers: a trace keeps a layer whole, and autocast's casts are inside.

A layer's kernel has no place in autocast's lists, or casts by rules of its own:

    CPU    oneDNN's LSTM         everything in autocast's dtype
           steps of an RNN       so, too; each step ends in a product's dtype
           steps of LSTM, GRU    the products only; a state keeps its dtype, and the results have the state's
    CUDA   cuDNN's layers        float16, whatever autocast's dtype is
           a cell's kernel       everything in autocast's dtype

Here a layer is given operands of one dtype, and its results get eager's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch

__all__ = ["Kernels", "autocast_layers", "in_autocast", "lowered"]

Layer = Callable[..., tuple[torch.Tensor, ...]]


def _lower(x: torch.Tensor) -> torch.dtype | None:
    """Return the dtype that autocast, if it is on for a tensor's device, gives to products; None for doubles."""
    kind = x.device.type
    if x.dtype is torch.float64 or not torch.is_autocast_enabled(kind):
        return None
    return torch.get_autocast_dtype(kind)


def lowered(x: torch.Tensor, *operands: Any) -> list[Any]:
    """Return x and further operands of a product, tensors or None, as autocast casts them if it is on."""
    lower = _lower(x)
    if lower is None:
        return [x, *operands]
    return [operand.to(lower) if operand is not None and _casts(operand) else operand for operand in (x, *operands)]


@dataclass(frozen=True)
class Kernels:
    """Whose kernels torch takes for recurrent layers.

    Attributes:
        onednn: for an LSTM on a CPU.
        cudnn: for all on a GPU.
    """

    onednn: bool
    cudnn: bool

    @classmethod
    def now(cls) -> Self:
        """Return those that torch is set to: an export switches them off for itself."""
        mkldnn, cudnn = torch.backends.mkldnn, torch.backends.cudnn
        return cls(bool(mkldnn.is_available() and mkldnn.enabled), bool(cudnn.is_available() and cudnn.enabled))


def in_autocast(function: Layer, kind: str, kernels: Kernels, *, packed: bool = False) -> Layer:
    """Return a recurrent layer as it is under autocast, too.

    Args:
        function: takes x, the state or states, the parameters and options.
        kind: "lstm", "gru", "rnn_tanh" or "rnn_relu".
        kernels: whose torch takes.
        packed: whether its sequences have lengths of their own.
    """

    def layer(*operands: Any, **named: Any) -> tuple[torch.Tensor, ...]:
        x, hx, params, *options = operands
        lower = _lower(x)
        states = [hx] if isinstance(hx, torch.Tensor) else list(hx)
        # Rows that are packed have how many there are of each step in the place of states.
        if lower is None or named or not all(map(_casts, (*states, *params))):
            return function(*operands, **named)
        results = state = torch.promote_types(states[-1].dtype, lower)
        if x.is_cuda and kernels.cudnn:
            results = state = torch.float16
        elif _is_projected(kind, params, *options):
            results = lower
        elif kind.startswith("rnn") or kind == "lstm" and kernels.onednn and not packed and _fits_onednn(x, lower):
            results = state = lower
        computed = results if x.is_cuda else torch.promote_types(results, torch.float32)
        x, *states = (operand.to(computed) for operand in (x, *states))
        hx = states[0] if isinstance(hx, torch.Tensor) else states
        params = [parameter.to(computed) for parameter in params]
        with torch.autocast(x.device.type, enabled=False):  # which would tell of other dtypes than the graph has
            y, *last = function(x, hx, params, *options)
        return y.to(results), last[0].to(results), *(cell.to(state) for cell in last[1:])

    return layer


def _casts(operand: torch.Tensor) -> bool:
    return operand.is_floating_point() and operand.dtype is not torch.float64


def _fits_onednn(x: torch.Tensor, lower: torch.dtype) -> bool:
    """Whether oneDNN has a kernel; for float16 in training it has none."""
    return x.device.type == "cpu" and (x.dtype is torch.float32 or lower is torch.bfloat16)


def _is_projected(kind: str, params: Sequence[torch.Tensor], *options: Any) -> bool:
    """Whether an LSTM has `proj_size`: then the matrices of a direction are an odd number."""
    has_biases, num_layers, _, _, bidirectional = options[:5]
    return kind == "lstm" and len(params) // (num_layers * (2 if bidirectional else 1)) == (5 if has_biases else 3)


def autocast_layers() -> dict[Callable[..., Any], Callable[..., Any]]:
    """Return what to call in place of torch's layers."""
    kernels = Kernels.now()
    functions = {kind: getattr(torch, kind) for kind in ("lstm", "gru", "rnn_tanh", "rnn_relu")}
    return {function: in_autocast(function, kind, kernels) for kind, function in functions.items()}
