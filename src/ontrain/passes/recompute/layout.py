"""Which values of a graph share memory, and how many bytes each piece of memory has."""

from __future__ import annotations

import math
from collections.abc import Sequence

import onnx_ir as ir

from ontrain.functions.attention import in_tiles, probabilities_are_read
from ontrain.graph import DOMAIN, nbytes, role_of, static_dims, updates_of
from ontrain.graph.roles import gradient_of

__all__ = ["Layout", "is_view"]

_ALIGN = 64
_RESHAPES = frozenset({"Reshape", "Squeeze", "Unsqueeze", "Flatten"})
_VIEWS = frozenset({*_RESHAPES, "Identity", "Transpose", "Split", "Slice", "Expand"})
Strides = tuple[int, ...]


def is_view(node: ir.Node) -> bool:
    """Whether the operator only looks at memory in another way, where strides allow."""
    return (not node.domain and node.op_type in _VIEWS) or (
        node.domain == DOMAIN and (node.op_type in ("Detach", "Inspect", "Through") or _is_scaled_in_place(node))
    )


def _is_scaled_in_place(node: ir.Node) -> bool:
    return node.op_type == "ScaleGrad" and node.inputs[0] is not None and len(node.inputs[0].uses()) == 1


class Layout:
    """Memory of a graph of concrete shapes, as a provider that plans it lays it out.

    Attributes:
        root: for each value the one whose memory it lies in; itself if it has its own.
        size: bytes of each root that takes working memory. Inputs, constants, and what is computed straight into a
            parameter, moment or gradient take none.
        lasting: roots that are handed out, so that they live to the end.
    """

    def __init__(self, graph: ir.Graph) -> None:
        self.root: dict[ir.Value, ir.Value] = {}
        self.size: dict[ir.Value, int] = {}
        self._strides: dict[ir.Value, Strides] = {}
        for node in graph:
            self._place(node)
        inputs = {v.name: v for v in graph.inputs}
        self.lasting = set()
        for value in graph.outputs:
            root = self.root.get(value)
            if root is None:
                continue
            belongs = inputs.get(gradient_of(value) or "")
            if updates_of(value) is not None or (belongs is not None and role_of(belongs).resident):
                self.size.pop(root, None)
            elif root in self.size:
                self.lasting.add(root)
        for node in reversed(graph):
            grad = _gradient_read(node)
            if grad is not None:
                self.size.pop(self.root.get(grad, grad), None)
            elif node.op_type == "Add" and self._is_free(node.outputs[0]):
                # The gradient of a parameter that is used twice: each use adds to the place of the sum.
                for use in node.inputs:
                    if use is not None and len(use.uses()) == 1:
                        self.size.pop(self.root.get(use, use), None)

    def _is_free(self, value: ir.Value) -> bool:
        return self.root.get(value) is not None and self.root[value] not in self.size

    def _place(self, node: ir.Node) -> None:
        source = node.inputs[0] if node.inputs else None
        viewed = self._viewed(node) if source is not None and is_view(node) else None
        for index, value in enumerate(node.outputs):
            if viewed is not None and source is not None:
                self.root[value] = self.root.get(source, source)
                self._strides[value] = viewed[index]
                continue
            self.root[value] = value
            self.size[value] = -(-(nbytes(value) or 0) // _ALIGN) * _ALIGN
        if _keeps_no_probabilities(node):
            y, probs = node.outputs[:2]
            self.root[probs] = y
            del self.size[probs]
            batch, heads, length, width = static_dims(y)
            self._strides[y] = (length * heads * width, width, heads * width, 1)

    def _viewed(self, node: ir.Node) -> list[Strides] | None:
        """The outputs' strides as views on the input; None if they need a copy."""
        source = node.inputs[0]
        assert source is not None
        shape = static_dims(source)
        strides = self._strides.get(source) or contiguous(shape)
        first = static_dims(node.outputs[0])
        if node.op_type in _RESHAPES:
            made = reshaped(shape, strides, first)
            return None if made is None else [made]
        if node.op_type == "Transpose":
            perm = node.attributes["perm"].as_ints() if "perm" in node.attributes else range(len(shape))[::-1]
            return [tuple(strides[i] for i in perm)]
        if node.op_type == "Expand":
            wide = (*([0] * (len(first) - len(shape))), *strides)
            sizes = (*([1] * (len(first) - len(shape))), *shape)
            return [tuple(0 if have != want else s for have, want, s in zip(sizes, first, wide, strict=True))]
        if node.op_type == "Slice" and len(node.inputs) > 4:
            steps = node.inputs[4]
            if steps is None or steps.const_value is None or bool((steps.const_value.numpy() != 1).any()):
                return None
        return [strides] * len(node.outputs)


def contiguous(shape: Sequence[int]) -> Strides:
    """Return the strides of row-major order."""
    return tuple(math.prod(shape[i + 1 :]) for i in range(len(shape)))


def reshaped(shape: Sequence[int], strides: Strides, wanted: Sequence[int]) -> Strides | None:
    """Return the strides with which memory shows another shape; None if no strides do.

    Axes that lie one inside the other are taken together, and each such run must be made of whole axes of `wanted`.
    """
    runs: list[list[int]] = []  # [elements, stride of the innermost]
    for size, stride in zip(shape, strides, strict=True):
        if size == 1:
            continue
        if runs and runs[-1][1] == stride * size:
            runs[-1] = [runs[-1][0] * size, stride]
        else:
            runs.append([size, stride])
    made: list[int] = []
    for size in reversed(wanted):
        if size == 1:
            made.append(runs[-1][1] if runs else 1)
            continue
        if not runs or runs[-1][0] % size:
            return None
        count, stride = runs.pop()
        made.append(stride)
        if count > size:
            runs.append([count // size, stride * size])
    return tuple(reversed(made))


def _keeps_no_probabilities(node: ir.Node) -> bool:
    """Whether attention makes its probabilities anew going backward, by one kernel or in tiles."""
    if (node.domain, node.op_type) != (DOMAIN, "Attention") or len(node.outputs) < 2:
        return False
    if "dropout" in node.attributes and node.attributes["dropout"].as_float() > 0:
        return in_tiles(node)
    return len(static_dims(node.outputs[0])) == 4 and not probabilities_are_read(node)


def _gradient_read(node: ir.Node) -> ir.Value | None:
    """The gradient that an optimizer's update reads: it lies with the state."""
    if node.domain != DOMAIN or not node.inputs or node.inputs[0] is None or len(node.inputs) < 2:
        return None
    updated = updates_of(node.outputs[0])
    return node.inputs[1] if updated is not None and updated == node.inputs[0].name else None
