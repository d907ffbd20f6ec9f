"""Choosing rows, packing them together and putting them back."""

from __future__ import annotations

import onnx_ir as ir
import torch

from ontrain.providers.torch.emitter import Emitter
from ontrain.providers.torch.lowering.registry import lowers_composite

__all__: list[str] = []


@lowers_composite("SelectRows")
def select_rows(e: Emitter, node: ir.Node) -> None:
    keep, out = e.value(node.inputs[0]), e.out(node.outputs[0])
    marks, order = e.new(keep.shape, keep.dtype), e.new(keep.shape, torch.int64)
    e.run(_select, out, keep, marks, order, writes=[out, marks, order])


def _select(out: torch.Tensor, keep: torch.Tensor, marks: torch.Tensor, order: torch.Tensor) -> None:
    torch.sort(keep, dim=0, descending=True, stable=True, out=(marks, order))
    count = out.shape[0]
    # Where looking costs no wait: a kept row beyond the bucket would be lost without a word.
    if keep.device.type == "cpu" and count < keep.shape[0] and bool(keep[order[count]]):
        raise AssertionError(f"{int(keep.sum())} rows are kept in a plan for {count}")
    out.copy_(order[:count])


@lowers_composite("PackRows", "SpreadRows")
def pack_rows(e: Emitter, node: ir.Node) -> None:
    x, indices = (e.value(v) for v in node.inputs[:2])
    e.call(torch.index_select, x, 0, indices, out=e.out(node.outputs[0]))


@lowers_composite("UnpackRows")
def unpack_rows(e: Emitter, node: ir.Node) -> None:
    x, indices = (e.value(v) for v in node.inputs)
    out = e.out(node.outputs[0])
    e.run(torch.Tensor.zero_, out, writes=[out])
    e.run(torch.Tensor.index_copy_, out, 0, indices, x, writes=[out])
