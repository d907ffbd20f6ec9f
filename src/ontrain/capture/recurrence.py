"""What torch has to know of a recurrent layer while it traces: shapes, for a length that may vary."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn import functional

from ontrain.internals import available, replaced

__all__ = ["varying_lengths"]

_DECOMPOSITIONS = "torch._decomp.decompositions"
_NAMES = ("one_layer_lstm", "one_layer_rnn", "select_one_layer_lstm_function")


@contextmanager
def varying_lengths() -> Iterator[None]:
    """Have torch find the shapes of a recurrent layer's results without running its steps; in this thread only.

    torch traces a layer as one operator, and finds its results' shapes by a step after the other: that fixes the length
    to the sample's. Left to torch is an LSTM with `proj_size`, which no operator of ONNX expresses; its final states
    come as [layers, batch, hidden], where torch before 2.13 keeps a dimension too many. A torch that does it otherwise
    is left to itself: each length is captured anew.
    """
    with replaced(_replacements(threading.get_ident())):
        yield


def _replacements(tracing: int) -> dict[str, Callable[..., Any]]:
    """Functions by the names that they have in torch; another thread, which compiles meanwhile, gets torch's."""
    own = [available(f"{_DECOMPOSITIONS}.{name}") for name in _NAMES]
    if None in own:
        return {}
    one_layer_lstm, one_layer_rnn, select = own

    def lstm(x: Any, hidden: Any, params: Any, has_biases: bool, reverse: bool = False) -> tuple[Any, tuple[Any, ...]]:
        if threading.get_ident() == tracing and len(params) % 2 == 0:
            return _layer(x, hidden[0], params), (hidden[0].clone(), hidden[1].clone())
        out, states = one_layer_lstm(x, hidden, params, has_biases, reverse=reverse)
        return out, tuple(state.view(state.shape[-2:]) for state in states)

    def rnn(x: Any, hidden: Any, params: Any, *options: Any, **named: Any) -> Any:
        if threading.get_ident() == tracing:
            return _layer(x, hidden, params), hidden.clone()
        return one_layer_rnn(x, hidden, params, *options, **named)

    def selected(*operands: Any) -> Any:
        # Of the two for an LSTM, the other is for inference on a CPU.
        return lstm if threading.get_ident() == tracing else select(*operands)

    replacements: tuple[Callable[..., Any], ...] = (lstm, rnn, selected)
    return dict(zip([f"{_DECOMPOSITIONS}.{name}" for name in _NAMES], replacements, strict=True))


def _layer(x: torch.Tensor, state: torch.Tensor, params: Sequence[torch.Tensor]) -> torch.Tensor:
    """What one direction of a layer makes of x [T, B, I] and state [B, H], in shape [T, B, H] and dtype."""
    # The products are there for torch to refuse operands that do not fit.
    gates = functional.linear(x, params[0]) + functional.linear(state, params[1])
    return gates.narrow(-1, 0, state.shape[-1])
