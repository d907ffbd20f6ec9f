"""Bags of an embedding's rows by ATen's kernels, forward and backward."""

from __future__ import annotations

import functools
from collections.abc import Callable

import onnx_ir as ir
import torch

from ontrain.internals import private
from ontrain.providers.torch.emitter import Emitter
from ontrain.providers.torch.lowering.registry import attributes, lowers_composite

__all__: list[str] = []


@lowers_composite("EmbeddingBag")
def embedding_bag(e: Emitter, node: ir.Node) -> None:
    operands = [e.value(v) for v in node.inputs if v is not None]
    a = attributes(node)
    bags = functools.partial(_bags, a.get("mean", 0), a.get("padding_idx", -1))
    e.compute(bags, *operands, outs=[e.out(node.outputs[0])], fresh=True)


def _bags(
    mean: int, padding: int, weight: torch.Tensor, ids: torch.Tensor, starts: torch.Tensor,
    shares: torch.Tensor | None = None,
) -> torch.Tensor:  # fmt: skip
    known = padding if padding >= 0 else None
    return torch.embedding_bag(weight, ids, starts, False, mean, False, shares, False, known)[0]


@lowers_composite("EmbeddingBagGrad")
def embedding_bag_grad(e: Emitter, node: ir.Node) -> None:
    operands = [e.value(v) for v in node.inputs if v is not None]
    a = attributes(node)
    rows = functools.partial(
        _rows, private("torch.ops.aten._embedding_bag_dense_backward"), a["rows"], a.get("mean", 0),
        a.get("padding_idx", -1),
    )  # fmt: skip
    e.compute(rows, *operands, outs=[e.out(node.outputs[0])], fresh=True)


def _rows(
    kernel: Callable[..., torch.Tensor], count: int, mean: int, padding: int, dy: torch.Tensor, ids: torch.Tensor,
    starts: torch.Tensor, shares: torch.Tensor | None = None,
) -> torch.Tensor:  # fmt: skip
    """The adjoint of the weight: the kernel wants to know the bag of each id, and how many ids each bag has."""
    bag = _bag_of_each(starts, ids.shape[0])
    sizes = torch.diff(starts, append=starts.new_full((1,), len(ids))).index_add_(0, bag, -(ids == padding).long())
    return kernel(dy, ids, bag, sizes, sizes, count, False, mean, shares, padding)


def _bag_of_each(starts: torch.Tensor, count: int) -> torch.Tensor:
    """Which bag each of so many ids is in: one more for every bag that began, whatever the order of the starts."""
    begun = torch.zeros(count + 1, dtype=starts.dtype, device=starts.device)  # an empty bag may begin behind the last
    return begun.index_add_(0, starts, torch.ones_like(starts)).cumsum(0)[:count] - 1
