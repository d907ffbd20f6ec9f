"""Packed sequences: what `torch.nn.utils.rnn` makes of padded rows and their lengths, in operators that a trace has.

    rows = pack_padded_sequence(x, lengths)    →   x, and which of its steps are there: [T, B]
    y, last = lstm(rows)                       →   the layer over x, with lengths
    pad_packed_sequence(y)                     →   its result, zero behind each length

A trace keeps the padded tensor beside the packed rows. What asks for the rows themselves, `rows.data`, gets them: there
are as many as the lengths say. What a module does of its own with packed rows is laid out in steps again.

Legend: T time, B batch, N packed rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.utils import rnn

from ontrain.capture.autocast import Kernels, in_autocast
from ontrain.capture.sympy_sizes import size_of
from ontrain.errors import CaptureError
from ontrain.internals import private, version_of

__all__ = ["packings"]

_LAYERS = ("torch.nn.RNN.forward", "torch.nn.LSTM.forward", "torch.nn.GRU.forward")
_KINDS = ("rnn_tanh", "rnn_relu", "lstm", "gru")


def packings(elsewhere: Callable[[], bool]) -> dict[str, Callable[[Any], Any]]:
    """Return what to make of torch's own functions, by name, during one trace.

    Args:
        elsewhere: whether the calling thread is another than the one that traces.
    """
    packed = _Packed()

    def here(ours: Callable[..., Any]) -> Callable[[Any], Any]:
        return lambda own: lambda *args, **kwargs: (own if elsewhere() else ours)(*args, **kwargs)

    def layer(own: Callable[..., Any]) -> Callable[..., Any]:
        def forward(self: nn.RNNBase, input: Any, hx: Any = None) -> Any:
            if elsewhere() or not isinstance(input, rnn.PackedSequence):
                return own(self, input, hx)
            return packed.through(own, self, input, hx)

        return forward

    def kernel(kind: str) -> Callable[[Any], Any]:
        return lambda own: lambda *args, **named: (own if elsewhere() else packed.kernel(own, kind))(*args, **named)

    return {
        "torch._VF._pack_padded_sequence": here(packed.pack),
        "torch._VF._pad_packed_sequence": here(packed.pad),
        "torch._C._nn.pad_sequence": here(_pad_sequence),
        **dict.fromkeys(_LAYERS, layer),
        **{f"torch._VF.{kind}": kernel(kind) for kind in _KINDS},
    }


@dataclass(frozen=True)
class _Steps:
    """Which steps of which sequences are there.

    Attributes:
        batch_sizes: how many sequences have each step; as torch has it.
        lengths: of the sequences, [B].
        valid: [T, B].
        rows: where in T·B the packed rows are, [N].
    """

    batch_sizes: torch.Tensor
    lengths: torch.Tensor
    valid: torch.Tensor
    rows: torch.Tensor

    def packed(self, padded: torch.Tensor) -> torch.Tensor:
        """Return the rows [N, …] of [T, B, …]."""
        return padded.flatten(0, 1).index_select(0, self.rows.to(padded.device))

    def padded(self, data: torch.Tensor) -> torch.Tensor:
        """Return rows [N, …] in their places [T, B, …], behind each length some other row."""
        places = (self.valid.flatten().cumsum(0) - 1).clamp(min=0).to(data.device)
        padded: torch.Tensor = data.index_select(0, places).unflatten(0, self.valid.shape)
        return padded

    def masked(self, padded: torch.Tensor, value: float) -> torch.Tensor:
        """Return [T, B, …] with a value behind each length."""
        valid = self.valid.to(padded.device).view(*self.valid.shape, *[1] * (padded.ndim - 2))
        return torch.where(valid, padded, value)


@dataclass(frozen=True)
class _Padded:
    """Packed rows, and the padded tensor that they are rows of; as they were."""

    steps: _Steps
    data: torch.Tensor
    padded: torch.Tensor
    versions: tuple[int, int]

    def holds(self) -> bool:
        """Whether nothing has written to one of them meanwhile."""
        return self.versions == (version_of(self.data), version_of(self.padded))


class _Packed:
    """The packed sequences of one trace."""

    def __init__(self) -> None:
        self._steps = dict[int, _Steps]()
        self._padded = dict[int, _Padded]()
        self._lengths: torch.Tensor | None = None
        self._kernels = Kernels.now()

    def pack(self, input: torch.Tensor, lengths: torch.Tensor, batch_first: bool) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the rows of sorted sequences [N, …], and how many sequences have each step."""
        padded = input.transpose(0, 1) if batch_first else input
        valid = torch.arange(padded.shape[0], device=lengths.device)[:, None] < lengths
        # Asked apart from the raise: a condition on which only an exception hangs would be passed by.
        fits = bool((lengths >= 1).all() & (lengths <= padded.shape[0]).all() & (lengths[1:] <= lengths[:-1]).all())
        if not fits:
            raise CaptureError(
                "the lengths of a packed sequence are not those of its rows",
                reason=f"each is at least 1 and at most {padded.shape[0]}, the steps of the padded tensor, and none is "
                "larger than that before it",
                way_out="correct the lengths; pass enforce_sorted=False if they are not sorted",
            )
        longest: Any = lengths.max().item()
        check = private("torch._check")
        check(longest >= 1)
        check(longest <= padded.shape[0])
        steps = self._noted(valid.sum(1).narrow(0, 0, longest).cpu(), lengths, valid)
        return self._kept(steps, padded), steps.batch_sizes

    def pad(
        self, data: torch.Tensor, batch_sizes: torch.Tensor, batch_first: bool, value: float, total_length: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the rows as [T, B, …] or [B, T, …] of `total_length` steps, and the lengths."""
        steps, padded = self._laid_out(data, batch_sizes, None)
        padded = steps.masked(padded, value)
        time = padded.shape[0]
        if _is_same(total_length, batch_sizes.shape[0]):
            padded = padded.narrow(0, 0, total_length)
        elif not _is_same(total_length, time):
            padded = _resized(padded, total_length, value)
        return padded.transpose(0, 1) if batch_first else padded, steps.lengths.cpu()

    def through(
        self, forward: Callable[..., Any], layer: nn.RNNBase, sequence: rnn.PackedSequence, hx: Any
    ) -> tuple[rnn.PackedSequence, Any]:
        """Return what a recurrent layer makes of packed rows: its results packed, and the last states."""
        data, batch_sizes, order, back = sequence
        batch = order.shape[0] if order is not None else None
        if batch is None and hx is not None:
            batch = (hx if isinstance(hx, torch.Tensor) else hx[0]).shape[1]
        steps, padded = self._laid_out(data, batch_sizes, batch)
        self._lengths = steps.lengths
        try:
            y, last = forward(layer, padded.transpose(0, 1) if layer.batch_first else padded, _ordered(hx, order))
            if self._lengths is not None:
                raise CaptureError(
                    f"{type(layer).__name__} runs over a packed sequence by a kernel of its own",
                    reason="only those of nn.LSTM, nn.GRU and nn.RNN are known to take lengths",
                    way_out="feed the padded batch, and mask the loss or the outputs by length",
                )
        finally:
            self._lengths = None
        y = y.transpose(0, 1) if layer.batch_first else y
        return rnn.PackedSequence(self._kept(steps, y), batch_sizes, order, back), _ordered(last, back)

    def kernel(self, own: Callable[..., Any], kind: str) -> Callable[..., Any]:
        """Return what a layer calls for all its steps; with lengths, while it goes over packed rows."""
        lengths = self._lengths

        def run(x: torch.Tensor, hx: Any, params: Sequence[torch.Tensor], *options: Any) -> Any:
            self._lengths = None
            initial = [hx] if isinstance(hx, torch.Tensor) else list(hx)
            return tuple(torch.ops.ontrain.recurrent(kind, x, lengths, initial, list(params), *options))

        return own if lengths is None else in_autocast(run, kind, self._kernels, packed=True)

    def _kept(self, steps: _Steps, padded: torch.Tensor) -> torch.Tensor:
        data = steps.packed(padded)
        self._padded[id(data)] = _Padded(steps, data, padded, (version_of(data), version_of(padded)))
        return data

    def _noted(self, batch_sizes: torch.Tensor, lengths: torch.Tensor, valid: torch.Tensor) -> _Steps:
        rows = valid.flatten().nonzero().squeeze(1)
        steps = self._steps[id(batch_sizes)] = _Steps(batch_sizes, lengths, valid, rows)
        return steps

    def _laid_out(
        self, data: torch.Tensor, batch_sizes: torch.Tensor, batch: int | None
    ) -> tuple[_Steps, torch.Tensor]:
        """The steps of packed rows, and the rows as [T, B, …]; what is behind each length means nothing."""
        steps = self._steps.get(id(batch_sizes))
        known = self._padded.get(id(data))
        if known is not None and known.steps is steps and known.holds():
            return steps, known.padded
        if steps is None:
            places = torch.arange(int(batch_sizes[0]) if batch is None else batch, device=batch_sizes.device)
            valid = places < batch_sizes[:, None]
            steps = self._noted(batch_sizes, valid.sum(0), valid)
            private("torch._check")(steps.rows.shape[0] == data.shape[0])
        return steps, steps.padded(data)


def _is_same(size: Any, length: Any) -> bool:
    """Whether two sizes are the same number, as far as a trace knows."""
    return bool(_size(size) == _size(length))


def _size(size: Any) -> Any:
    return size_of(size.node.expr if isinstance(size, torch.SymInt) else size)


def _ordered(hx: Any, order: torch.Tensor | None) -> Any:
    """States [L, B, H] with their sequences in another order."""
    if hx is None or order is None:
        return hx
    if isinstance(hx, torch.Tensor):
        return hx.index_select(1, order)
    return tuple(state.index_select(1, order) for state in hx)


def _pad_sequence(
    sequences: Sequence[torch.Tensor], batch_first: bool = False, padding_value: float = 0.0,
    padding_side: str = "right",
) -> torch.Tensor:  # fmt: skip
    """Return sequences [L, …] as [T, B, …] or [B, T, …]; torch's own fixes their lengths."""
    longest: Any = sequences[0].shape[0]
    for sequence in sequences[1:]:
        longest = torch.sym_max(longest, sequence.shape[0])
    padded = [_resized(sequence, longest, padding_value, left=padding_side == "left") for sequence in sequences]
    return torch.stack(padded, 0 if batch_first else 1)


def _resized(x: torch.Tensor, length: Any, value: float, *, left: bool = False) -> torch.Tensor:
    """x [L, …] as [length, …], filled up with a value; no tensor is as long as the difference, which may be one."""
    filled = torch.cat([x, x.new_full((1, *x.shape[1:]), value)])
    places = torch.arange(length, device=x.device)
    if left:
        places = places - (length - x.shape[0])
    inside = (places >= 0) & (places < x.shape[0])
    return filled.index_select(0, torch.where(inside, places, x.shape[0]))


@torch.library.custom_op("ontrain::recurrent", mutates_args=())
def _recurrent(
    kind: str, x: torch.Tensor, lengths: torch.Tensor, states: Sequence[torch.Tensor], params: Sequence[torch.Tensor],
    has_biases: bool, num_layers: int, dropout: float, train: bool, bidirectional: bool, batch_first: bool,
) -> list[torch.Tensor]:  # fmt: skip
    """A layer of `kind` over x [T, B, I] with lengths of its sorted sequences: Y, zero behind them, and last states."""
    rows = rnn.pack_padded_sequence(x, lengths, batch_first)
    hx = list(states) if kind == "lstm" else states[0]
    options = has_biases, num_layers, dropout, train, bidirectional
    y, *last = getattr(torch, kind)(rows.data, rows.batch_sizes, hx, list(params), *options)
    padded, _ = rnn.pad_packed_sequence(rnn.PackedSequence(y, rows.batch_sizes), batch_first, 0.0,
                                        x.shape[1 if batch_first else 0])  # fmt: skip
    return [padded.contiguous(), *last]


@_recurrent.register_fake
def _(
    kind: str, x: torch.Tensor, lengths: torch.Tensor, states: Sequence[torch.Tensor], params: Sequence[torch.Tensor],
    has_biases: bool, num_layers: int, dropout: float, train: bool, bidirectional: bool, batch_first: bool,
) -> list[torch.Tensor]:  # fmt: skip
    size = states[0].shape[-1] * (2 if bidirectional else 1)
    return [x.new_empty((*x.shape[:2], size)), *(torch.empty_like(state) for state in states)]


def _untraced(context: Any, *_: Any) -> Any:
    raise NotImplementedError("a trace computes no gradient")


_recurrent.register_autograd(_untraced)
