"""Convolutions that make one pixel of an image, or an image of one pixel, as products of matrices."""

from __future__ import annotations

import math
from collections.abc import Sequence

import onnx_ir as ir

from ontrain.graph import Builder, static_dims
from ontrain.operators import attribute_of
from ontrain.passes.fusion import Fusion, Match, Pattern, fail
from ontrain.passes.serving import serving_of

__all__ = ["WholeImagesToGemm"]

_BEYOND = ("pads", "output_padding", "output_shape")
"""Attributes that add to an image, unless all of their numbers are 0."""


class WholeImagesToGemm(Fusion):
    """Turn convolutions between an image and a single pixel into Gemm, before differentiation.

        Conv(x[N, C, K…], W[M, C, K…], b)            →  Reshape(Gemm(x[N, C·K], W[M, C·K], b, transB=1), [N, M, 1…])
        ConvTranspose(x[N, C, 1…], W[C, M, K…], b)   →  Reshape(Gemm(x[N, C], W[C, M·K]), [N, M, K…]) + b

    Equal because each filter is multiplied with the image once. These are the two small convolutions of a
    squeeze-and-excitation block, the first fully connected layer of VGG written as a convolution, and the first layer
    of DCGAN's generator. Convolution kernels are made for many windows: oneDNN takes three to ten times as long as for
    the product. Left alone: groups, pads, and sessions for inference, where oneDNN has the filters in its own order.
    """

    patterns = (Pattern("Conv", ("x", "w", "b?")), Pattern("ConvTranspose", ("x", "w", "b?")))

    def check(self, match: Match) -> None:
        """Look for filters that cover the image, or the image that a pixel becomes."""
        node = match.node
        kernel = static_dims(match["w"])[2:]
        covered = match["x"] if node.op_type == "Conv" else node.outputs[0]
        pixel = node.outputs[0] if node.op_type == "Conv" else match["x"]
        if static_dims(covered)[2:] != kernel or math.prod(static_dims(pixel)[2:]) != 1:
            fail("the filters do not cover the image")
        if attribute_of(node, "group") != 1:
            fail("the convolution has groups")
        if _is_padded(node, kernel):
            fail("the image is padded")
        if serving_of(_graph_of(node)) is not None:
            fail("in a session for inference filters are kept in oneDNN's order")

    def replace(self, op: Builder, match: Match, operands: dict[str, ir.Value | None]) -> list[ir.Value | None]:
        """Emit the product of the flat images and the flat filters."""
        x, w, bias = operands["x"], operands["w"], operands.get("b")
        assert x is not None and w is not None
        (images, channels, *image), (rows, columns, *kernel) = static_dims(x), static_dims(w)
        shape, elements = static_dims(match.node.outputs[0]), math.prod(kernel)
        flat = op.Reshape(x, [images, channels * math.prod(image)])
        if match.node.op_type == "Conv":
            return [op.Reshape(op.Gemm(flat, op.Reshape(w, [rows, columns * elements]), bias, transB=1), shape)]
        y = op.Reshape(op.Gemm(flat, op.Reshape(w, [rows, columns * elements])), shape)
        return [y if bias is None else op.Add(y, op.Reshape(bias, [1, columns, *[1] * len(kernel)]))]


def _is_padded(node: ir.Node, kernel: Sequence[int]) -> bool:
    """Whether windows reach beyond the image, or an image beyond its windows."""
    own = [node.attributes[name].as_ints() for name in _BEYOND if name in node.attributes]
    if any(map(any, own)):
        return True
    return math.prod(kernel) != 1 and attribute_of(node, "auto_pad") not in ("NOTSET", "VALID")


def _graph_of(node: ir.Node) -> ir.Graph:
    assert isinstance(node.graph, ir.Graph)
    return node.graph
