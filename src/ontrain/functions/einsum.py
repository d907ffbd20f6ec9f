"""The shape of an einsum: an axis of length one is repeated for the operands that have more of it."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from ontrain.graph import TypeAndShape, register_inference
from ontrain.operators import subscripts

__all__: list[str] = []

Dim = int | ir.SymbolicDim


def _einsum_types(node: ir.Node) -> Sequence[TypeAndShape | None]:
    """onnx's own rule gives an axis the length that the first operand has."""
    operands = [value for value in node.inputs if value is not None]
    shapes = [value.shape for value in operands if value.shape is not None]
    dtype = operands[0].dtype
    if dtype is None or len(shapes) < len(operands):
        return [None]
    terms, result = subscripts(node.attributes["equation"].as_string(), [len(shape) for shape in shapes])
    lengths: dict[str, Dim] = {}
    for term, shape in zip(terms, shapes, strict=True):
        for letter, length in zip(term, shape, strict=True):
            lengths[letter] = _longer(letter, lengths.get(letter, 1), length)
    return [(dtype, ir.Shape([lengths[letter] for letter in result]))]


def _longer(letter: str, a: Dim, b: Dim) -> Dim:
    if isinstance(a, int) and isinstance(b, int) and 1 not in (a, b) and a != b:
        raise ValueError(f"{letter!r} stands for axes of {a} and {b}")
    if a == 1 or (isinstance(b, int) and b != 1 and not isinstance(a, int)):
        return b
    return a


register_inference("Einsum", _einsum_types, "")
