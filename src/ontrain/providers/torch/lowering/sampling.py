"""Images read at places of a grid, by ATen's kernels."""

from __future__ import annotations

import onnx_ir as ir
import torch

from ontrain.operators import static_dims
from ontrain.providers.torch.emitter import Emitter
from ontrain.providers.torch.lowering.registry import attributes, lowers, lowers_composite

__all__: list[str] = []

aten = torch.ops.aten
_MODES = {"linear": 0, "bilinear": 0, "nearest": 1, "cubic": 2, "bicubic": 2}
_PADDINGS = {"zeros": 0, "border": 1, "reflection": 2}
_DTYPES = (ir.DataType.FLOAT, ir.DataType.DOUBLE)


def _fits(node: ir.Node) -> bool:
    """Whether ATen has a kernel for such images. A node without shapes stands for the operator as such."""
    *_, x, grid = (None, None, *node.inputs)
    if x is None or grid is None or x.shape is None or grid.shape is None:
        return True
    if x.dtype not in _DTYPES or grid.dtype is not x.dtype:
        return False
    rank, mode = len(static_dims(x)) - 2, attributes(node).get("mode", "linear")
    return 0 not in (*static_dims(x), *static_dims(grid)) and (rank == 2 or (rank == 3 and _MODES[mode] < 2))


def _settings(node: ir.Node) -> tuple[int, int, bool]:
    a = attributes(node)
    return _MODES[a.get("mode", "linear")], _PADDINGS[a.get("padding_mode", "zeros")], bool(a.get("align_corners", 0))


@lowers("GridSample", when=_fits)
def grid_sample(e: Emitter, node: ir.Node) -> None:
    x, grid = (e.value(v) for v in node.inputs)
    kernel = aten.grid_sampler_2d.default if len(x.shape) == 4 else aten.grid_sampler_3d.default
    e.compute(kernel, x, grid, *_settings(node), outs=[e.out(node.outputs[0], x)], fresh=True)


@lowers_composite("GridSampleGrad", when=_fits)
def grid_sample_grad(e: Emitter, node: ir.Node) -> None:
    dy, x, grid = (e.value(v) for v in node.inputs)
    planes = len(x.shape) == 4
    kernel = aten.grid_sampler_2d_backward.default if planes else aten.grid_sampler_3d_backward.default
    outs = [e.out(v, x) if i == 0 else e.out(v) for i, v in enumerate(node.outputs)]
    mask = [e.reads(v) for v in node.outputs]
    e.compute(kernel, dy, x, grid, *_settings(node), mask, outs=outs, fresh=True)
