"""Pooling to a given size by ATen's kernels, forward and backward, for lines as images one pixel high."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir
import torch

from ontrain.internals import private
from ontrain.operators import static_dims
from ontrain.providers.torch.buffers import Buf, order_of
from ontrain.providers.torch.emitter import Emitter
from ontrain.providers.torch.lowering.registry import attributes, lowers_composite

__all__: list[str] = []

aten = torch.ops.aten


def _pools(node: ir.Node) -> bool:
    """Whether ATen pools such images: up to three axes behind one or two others.

    A node without inputs stands for the operator as such.
    """
    if not node.inputs or node.inputs[0] is None:
        return True
    rank = _rank(node)
    dims = static_dims(node.inputs[0])
    return 1 <= rank <= 3 and len(dims) - rank in (1, 2) and 0 not in dims


def _rank(node: ir.Node) -> int:
    """Over how many axes a node pools."""
    a = attributes(node)
    return len(a["output_size"]) if "output_size" in a else int(a["rank"])


def _images(e: Emitter, x: Buf, rank: int) -> Buf:
    return e.view(x, lambda t: t.unsqueeze(-2)) if rank == 1 else x


def _size(size: Sequence[int]) -> list[int]:
    return [1, *size] if len(size) == 1 else [*size]


@lowers_composite("AdaptiveAveragePool", when=_pools)
def adaptive_average_pool(e: Emitter, node: ir.Node) -> None:
    x, rank = e.value(node.inputs[0]), _rank(node)
    y = e.out(node.outputs[0], x)
    # Where x has another layout than the result, the kernel mixes up their elements without a word.
    images, out = (_images(e, v, rank) for v in (e.ordered(x, order_of(y.meta)), y))
    kernel = aten.adaptive_avg_pool3d if rank == 3 else aten.adaptive_avg_pool2d
    e.run(kernel.out, images, _size(attributes(node)["output_size"]), out=out, writes=[out])


@lowers_composite("AdaptiveAveragePoolGrad", when=_pools)
def adaptive_average_pool_grad(e: Emitter, node: ir.Node) -> None:
    dy, rank = e.value(node.inputs[0]), _rank(node)
    out = _images(e, e.out(node.outputs[0], dy), rank)
    # The kernels ask for the images only to know their shape, which the result has, too.
    dy = _images(e, e.ordered(dy, order_of(out.meta)), rank)
    if rank == 3:
        e.run(aten.adaptive_avg_pool3d_backward.grad_input, dy, out, grad_input=out, writes=[out])
        return
    kernel = private("torch.ops.aten._adaptive_avg_pool2d_backward")
    e.compute(kernel, dy, e.new(out.shape, out.dtype, order_of(out.meta)), outs=[out], fresh=True)


@lowers_composite("AdaptiveMaxPool", when=_pools)
def adaptive_max_pool(e: Emitter, node: ir.Node) -> None:
    x, rank = e.value(node.inputs[0]), _rank(node)
    y = e.out(node.outputs[0], x)
    order = order_of(y.meta)
    places = e.out(node.outputs[1], x) if len(node.outputs) > 1 else e.new(y.shape, torch.int64, order)
    images, maxima, at = (_images(e, v, rank) for v in (e.ordered(x, order), y, places))
    kernel = aten.adaptive_max_pool3d if rank == 3 else aten.adaptive_max_pool2d
    size = _size(attributes(node)["output_size"])
    e.run(kernel.out, images, size, out=maxima, indices=at, writes=[maxima, at])


@lowers_composite("AdaptiveMaxPoolGrad", when=_pools)
def adaptive_max_pool_grad(e: Emitter, node: ir.Node) -> None:
    (dy, places), rank = (e.value(v) for v in node.inputs), _rank(node)
    out = e.out(node.outputs[0], places)
    order = order_of(out.meta)
    dmaxima, at, images = (_images(e, v, rank) for v in (e.ordered(dy, order), e.ordered(places, order), out))
    kernel = aten.adaptive_max_pool3d_backward if rank == 3 else aten.adaptive_max_pool2d_backward
    e.run(kernel.grad_input, dmaxima, images, at, grad_input=images, writes=[images])
