"""Results that may be infinite or no number, before kernels that make plain numbers of these.

oneDNN's rectifier gives 0 for NaN, and its bounds give a bound. So a plan asks once whether the values that come in are
finite: what is fed, and what operators made that have results of finite numbers which are not finite, as a division by
zero. Where one is not, what follows a product is computed by ATen, which keeps NaN. Not looked for are numbers that
outgrow their type on the way, and weights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import onnx_ir as ir
import torch

from ontrain.graph import role_of
from ontrain.operators import operand_of, record_of
from ontrain.providers.torch.buffers import Buf
from ontrain.providers.torch.emitter import Emitter

__all__ = ["Afterwards", "activations_by_aten", "doubt"]

Afterwards = Callable[..., object]
"""An activation in place, of a result and numbers."""
_LOSES_NAN = ("relu", "hardtanh", "hardsigmoid")
"""oneDNN's activations that make numbers of NaN."""


def _hard_sigmoid(y: torch.Tensor) -> object:
    return y.div_(6).add_(0.5).clamp_(0, 1)


_BY_ATEN: dict[str, Afterwards] = {"relu": torch.relu_, "hardtanh": torch.clamp_, "hardsigmoid": _hard_sigmoid}


def activations_by_aten(name: str) -> Afterwards | None:
    """Return an activation in place that keeps NaN; None where oneDNN's own keeps it, which goes by this name."""
    return _BY_ATEN[name] if name in _LOSES_NAN else None


def doubt(e: Emitter, node: ir.Node) -> Buf:
    """Return whether what reached a node so far is not finite, as a truth value that the plan computes.

    Args:
        e: where questions that nobody asked yet are emitted.
        node: it activates a sum of products of its first input, and of its fourth.
    """
    asked = [e.value(value) for value in _to_ask(e, node)]
    if asked or e.doubt is None:
        before, flag = e.doubt, e.new([], torch.bool)
        e.compute(_is_not_finite, before, *asked, outs=[flag], fresh=True)
        e.doubt = flag
    return e.doubt


def _is_not_finite(before: torch.Tensor | None, *values: torch.Tensor) -> torch.Tensor:
    doubts = [] if before is None else [bool(before)]
    doubts.extend(not bool(value.sum().isfinite()) for value in values)
    return torch.tensor(any(doubts))


def _to_ask(e: Emitter, node: ir.Node) -> Iterator[ir.Value]:
    """What the node computes with and may not be finite; it counts as asked from then on."""
    for value in (node.inputs[0], operand_of(node, 3)):
        if value is not None and not _is_finite(e, value):
            e.finite.add(value)
            yield value


def _is_finite(e: Emitter, value: ir.Value) -> bool:
    """Whether a value follows by operators that keep numbers finite from what was asked, and from weights."""
    pending, seen = [value], set[ir.Value]()
    while pending:
        value = pending.pop()
        if value in e.finite or value in seen:
            continue
        seen.add(value)
        node = value.producer()
        if node is not None:
            record = record_of(node)
            if record.singular or record.control or record.foreign:
                return False
            pending.extend(operand for operand in node.inputs if operand is not None)
        elif value.const_value is None and not role_of(value).resident:
            return False
    e.finite.update(seen)
    return True
