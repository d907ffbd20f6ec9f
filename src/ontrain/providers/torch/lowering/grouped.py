"""Products of groups of rows with a matrix each: one product a group, of its own rows alone.

Where groups end is data, so a device is waited for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import onnx_ir as ir
import torch

from ontrain.providers.torch.emitter import Emitter
from ontrain.providers.torch.lowering.product import Factors, formulation
from ontrain.providers.torch.lowering.registry import lowers_composite
from ontrain.providers.torch.timings import ATEN
from ontrain.providers.torch.weights import LINEAR

__all__: list[str] = []


@lowers_composite("GroupedMatMul")
def grouped_matmul(e: Emitter, node: ir.Node) -> None:
    x, w, ends = (e.value(v) for v in node.inputs)
    x, out = e.contiguous(x), e.out(node.outputs[0])
    rows, multiply = x.shape[0] // max(1, w.shape[0]), _by_aten
    if rows and w.meta.numel():
        # Groups have other numbers of rows in each step; one of the mean size stands for all of them.
        typical = Factors(e.narrow(x, 0, 0, rows), e.select(w, 0, 0), e.narrow(out, 0, 0, rows))
        if formulation(e, typical) != ATEN:
            multiply = _by_onednn
    e.run(multiply, x, w, ends, out, writes=[out])


@lowers_composite("GroupedOuter")
def grouped_outer(e: Emitter, node: ir.Node) -> None:
    x, y, ends = (e.value(v) for v in node.inputs)
    out = e.out(node.outputs[0])
    e.run(_outer, x, y, ends, out, writes=[out])


def _groups(ends: torch.Tensor, rows: int) -> Iterator[slice]:
    """The rows of each group."""
    start = 0
    for end in ends.tolist():
        end = min(max(end, start), rows)
        yield slice(start, end)
        start = end


def _multiply(
    product: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], object], x: torch.Tensor, w: torch.Tensor,
    ends: torch.Tensor, out: torch.Tensor,
) -> None:  # fmt: skip
    """Write the product of each group, and zeros behind the last; `product` writes to its third operand."""
    last = 0
    for group, matrix in zip(_groups(ends, len(x)), w, strict=True):
        if group.start < group.stop:
            product(x[group], matrix, out[group])
        last = group.stop
    out[last:].zero_()


_by_aten = partial(_multiply, lambda x, matrix, out: torch.mm(x, matrix, out=out))
_by_onednn = partial(_multiply, lambda x, matrix, out: out.copy_(LINEAR(x, matrix.t(), None, "none", [], "")))


def _outer(x: torch.Tensor, y: torch.Tensor, ends: torch.Tensor, out: torch.Tensor) -> None:
    for group, sums in zip(_groups(ends, len(x)), out, strict=True):
        torch.mm(x[group].t(), y[group], out=sums)
