"""Calls that are spelled out in others: where torch.export says another dtype or shape than eager, or sees nothing."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from ontrain.capture.autocast import autocast_layers, lowered
from ontrain.capture.covariances import correlation, covariance
from ontrain.capture.library_operators import LibraryOperators
from ontrain.capture.listed_tensors import as_tensor, new_tensor, tensor
from ontrain.capture.number_arrays import numbers_of
from ontrain.capture.pairs import combinations, pdist, tril_indices, triu_indices
from ontrain.capture.queries import QUERIES
from ontrain.capture.ranges import fftfreq, linspace, logspace, rfftfreq
from ontrain.capture.value_slices import getitem, setitem
from ontrain.capture.ways_out import BROKEN
from ontrain.capture.windows import WINDOWS
from ontrain.errors import CaptureError
from ontrain.internals import available, of, private

__all__ = ["SpelledOut"]


class SpelledOut(TorchFunctionMode):
    """While it is entered, results have eager's dtype and shape where torch's tensors without values have not.

    An operator that a program registers by `torch.library.custom_op` is what its Python code computes. A cell of a
    recurrent layer is what it computes, too: for its sake torch would write the whole program anew, and of the results
    of a GPU's kernel torch says nothing.
    """

    def __init__(self) -> None:
        super().__init__()
        self._library = LibraryOperators()
        names = {"torch.Tensor._nnz": _nnz, "torch._sparse_sum": _sparse_sum}
        self._spelled_out: dict[Callable[..., Any], Callable[..., Any]] = {**_SPELLED_OUT, **autocast_layers()}
        self._spelled_out.update((available(name), function) for name, function in names.items())

    def __torch_function__(
        self,
        function: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Call what stands in for the function, or the function itself."""
        named = kwargs or {}
        if function in QUERIES:
            return function(*args, **named)
        code = self._library.code(function)
        if code is None:
            return self._spelled_out.get(function, function)(*args, **named)
        with self:  # it may call others
            return code(*args, **named)


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


def _logistic_loss(input: torch.Tensor, target: torch.Tensor, *options: Any, **named: Any) -> torch.Tensor:
    loss = functional.binary_cross_entropy_with_logits(input, target, *options, **named)
    if not target.is_floating_point() or torch.is_autocast_enabled(input.device.type):
        return loss  # in single precision under autocast
    return loss.to(target.dtype)  # torch 2.11 says the promoted one


def _gaussian_nll_loss(
    input: torch.Tensor, target: torch.Tensor, var: Any, full: bool = False, eps: float = 1e-6, reduction: str = "mean"
) -> torch.Tensor:
    """Raise small variances here, past which gradients go: torch does so under no_grad, which is not seen inside."""
    if isinstance(var, torch.Tensor):
        var = torch.where(var < eps, var - var.detach() + eps, var)
        eps -= 1.0  # at which nothing is clamped: from torch 2.15 on no gradient passes a bound that is met
    return functional.gaussian_nll_loss(input, target, var, full=full, eps=eps, reduction=reduction)


def _power(function: Callable[..., Any]) -> Callable[..., Any]:
    def power(input: Any, exponent: Any, **out: Any) -> Any:
        if out or not isinstance(exponent, bool) or getattr(input, "dtype", None) is not torch.bool:
            return function(input, exponent, **out)
        return input.clone() if exponent else torch.ones_like(input)

    return power


def _unbind(input: torch.Tensor, dim: int = 0) -> Sequence[torch.Tensor]:
    size: Any = input.shape[dim]
    if not isinstance(size, torch.SymInt) or size.node.has_hint():
        return input.unbind(dim)
    return tuple([input.select(dim, at) for at in range(size)])  # a size that follows from values is asked for


def _broadcast_tensors(*tensors: torch.Tensor) -> Sequence[torch.Tensor]:
    shape = torch.broadcast_shapes(*(tensor.shape for tensor in tensors))
    return tuple([tensor.expand(shape) for tensor in tensors])  # which says, unlike torch's operator, that it is a view


def _arange(*limits: Any, **options: Any) -> torch.Tensor:
    known = [float(x) if isinstance(x, torch.SymFloat) and not x.node.has_hint() else x for x in limits]
    return torch.arange(*known, **options)  # a fraction that follows from values is asked for


def _isin(elements: Any, test_elements: Any, *options: Any, invert: bool = False, **named: Any) -> torch.Tensor:
    few = all(isinstance(x, torch.Tensor) for x in (elements, test_elements)) and isinstance(test_elements.numel(), int)
    if options or named.get("out") is not None or not few or test_elements.numel() > _FEW:
        return torch.isin(elements, test_elements, *options, invert=invert, **named)
    # Torch's own would have the whole program taken apart.
    among: torch.Tensor = (elements.unsqueeze(-1) == test_elements.flatten()).any(-1)
    return ~among if invert else among


def _fill_diagonal(input: torch.Tensor, fill_value: Any, wrap: bool = False) -> torch.Tensor:
    rank = input.dim()
    places = [torch.arange(size, device=input.device) for size in input.shape]
    if wrap and rank == 2:  # below a square the diagonal begins anew, one row left out
        places[0] = places[0] % (input.shape[1] + 1)
    first, *others = (place.reshape([-1 if d == axis else 1 for d in range(rank)]) for axis, place in enumerate(places))
    on = functools.reduce(torch.logical_and, (first == place for place in others))
    return input.masked_fill_(on, fill_value)


def _lstm_cell(
    input: torch.Tensor,
    hx: tuple[torch.Tensor, torch.Tensor],
    w_ih: torch.Tensor,
    w_hh: torch.Tensor,
    *biases: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    input, h, c, *weights = _of_kernel(input, *hx, w_ih, w_hh, *biases)
    of_input, of_state = _gates(input, h, *weights)
    enter, forget, cell, leave = (of_input + of_state).chunk(4, 1)
    c = forget.sigmoid() * c + enter.sigmoid() * cell.tanh()
    h = leave.sigmoid() * c.tanh()
    return (h.to(input.dtype), c.to(input.dtype)) if input.is_cuda else (h, c)


def _of_kernel(*operands: torch.Tensor) -> Sequence[torch.Tensor]:
    """What a cell computes with under autocast: a GPU's kernel casts all, elsewhere the products alone are cast."""
    return lowered(*operands) if operands[0].is_cuda else operands


def _gates(
    input: torch.Tensor, hx: torch.Tensor, w_ih: torch.Tensor, w_hh: torch.Tensor, b_ih: Any = None, b_hh: Any = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Of the input and of the state. A GPU's kernel goes on in single precision where these are halves."""
    if not input.is_cuda or torch.promote_types(input.dtype, torch.float32) is input.dtype:
        return functional.linear(input, w_ih, b_ih), functional.linear(hx, w_hh, b_hh)
    of_input, of_state = functional.linear(input, w_ih).float(), functional.linear(hx, w_hh).float()
    return of_input if b_ih is None else of_input + b_ih, of_state if b_hh is None else of_state + b_hh


def _gru_cell(
    input: torch.Tensor, hx: torch.Tensor, w_ih: torch.Tensor, w_hh: torch.Tensor, *biases: torch.Tensor
) -> torch.Tensor:
    input, hx, *weights = _of_kernel(input, hx, w_ih, w_hh, *biases)
    of_input, of_state = _gates(input, hx, *weights)
    reset, update, new = of_input.chunk(3, 1)
    h_reset, h_update, h_new = of_state.chunk(3, 1)
    candidate = (new + (reset + h_reset).sigmoid() * h_new).tanh()
    h = candidate + (update + h_update).sigmoid() * (hx - candidate)
    return h.to(hx.dtype) if input.is_cuda else h


def _tanh_cell(input: torch.Tensor, hx: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
    return _products(input, hx, *weights).tanh()


def _relu_cell(input: torch.Tensor, hx: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
    return _products(input, hx, *weights).relu()


def _products(
    input: torch.Tensor, hx: torch.Tensor, w_ih: torch.Tensor, w_hh: torch.Tensor, b_ih: Any = None, b_hh: Any = None
) -> torch.Tensor:
    return functional.linear(input, w_ih, b_ih) + functional.linear(hx, w_hh, b_hh)


def _nnz(input: torch.Tensor) -> Any:
    """The number of places of a sparse matrix; torch's tracer takes what is computed of others for empty."""
    places = of("torch.Tensor._indices", input)().shape[1] if input.layout is torch.sparse_coo else None
    if places is None or isinstance(places, int) and places == 0:
        raise CaptureError(
            "forward asks how many places a sparse matrix has that it computes",
            reason="torch's tracer does not know the number, and would say none; values at one place may be merged",
            way_out=f"take the number from the indices that the matrix is made of; or {BROKEN}",
        )
    return places


def _sparse_sum(input: torch.Tensor, dim: Any = None, *, dtype: torch.dtype | None = None) -> torch.Tensor:
    axes = None if dim is None else {axis % input.dim() for axis in ([dim] if isinstance(dim, int) else dim)}
    if axes is None or len(axes) == input.dim():
        return input.sum() if dtype is None else input.sum(dtype=dtype)
    named: dict[str, Any] = {} if dtype is None else {"dtype": dtype}
    summed: torch.Tensor = private("torch._sparse_sum")(input, dim, **named)
    return summed


_FEW = 64
"""Values that each element is compared with; among more, sorting them is less work."""
_DATA: Any = torch.Tensor.data

_SPELLED_OUT: dict[Callable[..., Any], Callable[..., Any]] = {
    functional.binary_cross_entropy_with_logits: _logistic_loss,
    functional.gaussian_nll_loss: _gaussian_nll_loss,
    functional.huber_loss: _huber_loss,
    functional.soft_margin_loss: _soft_margin_loss,
    torch.arange: _arange,
    torch.as_tensor: as_tensor,
    torch.broadcast_tensors: _broadcast_tensors,
    torch.combinations: combinations,
    torch.fft.fftfreq: fftfreq,
    torch.fft.rfftfreq: rfftfreq,
    torch.gru_cell: _gru_cell,
    torch.isin: _isin,
    torch.linspace: linspace,
    torch.logspace: logspace,
    torch.lstm_cell: _lstm_cell,
    torch.pdist: pdist,
    torch.rnn_relu_cell: _relu_cell,
    torch.rnn_tanh_cell: _tanh_cell,
    torch.tensor: tensor,
    torch.tril_indices: tril_indices,
    torch.triu_indices: triu_indices,
    torch.Tensor.__getitem__: getitem,
    torch.Tensor.__setitem__: setitem,
    torch.Tensor.fill_diagonal_: _fill_diagonal,
    torch.Tensor.new_tensor: new_tensor,
    torch.Tensor.numpy: numbers_of,
    _DATA.__get__: torch.Tensor.detach,
    **WINDOWS,
    **dict.fromkeys((torch.cov, torch.Tensor.cov), covariance),
    **dict.fromkeys((torch.corrcoef, torch.Tensor.corrcoef), correlation),
    **dict.fromkeys((torch.unbind, torch.Tensor.unbind), _unbind),
    **{function: _power(function) for function in (torch.pow, torch.Tensor.pow, torch.Tensor.__pow__)},
}
