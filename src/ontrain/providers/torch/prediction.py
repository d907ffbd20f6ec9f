"""What memory a graph will take, said before it is lowered: which values share memory, and how many bytes each has.

`Prediction` follows the rules by which `plan_memory` lays a lowered graph out, without lowering it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import onnx_ir as ir

from ontrain.graph import DOMAIN, WorkingMemory, gradient_of, nbytes, role_of, static_dims, updates_of
from ontrain.operators import View, record_of
from ontrain.providers.torch.lowering.attention_tiles import runs_flash_for_cpu, runs_in_tiles
from ontrain.providers.torch.state import ALIGN

__all__ = ["memory_of"]

Strides = tuple[int, ...]


def memory_of(graph: ir.Graph, logits_bytes: int, *, as_eager: bool) -> WorkingMemory:
    """Return where the values of a graph of concrete shapes will lie.

    Args:
        graph: its nodes run in their order.
        logits_bytes: what the scores of a classifier may take at once where its loss is made in chunks of rows.
        as_eager: whether kernels are to be those of eager PyTorch wherever they fit.
    """
    prediction = _Prediction(graph, as_eager)
    scratch = {node: size for node in graph if (size := prediction.scratch(node, logits_bytes))}
    return WorkingMemory(prediction.root, prediction.size, prediction.lasting, scratch)


class _Prediction:
    """Fills in the attributes of a `WorkingMemory`."""

    def __init__(self, graph: ir.Graph, as_eager: bool) -> None:
        self._as_eager = as_eager
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
        seen = source is not None and (record_of(node).is_view or _is_scaled_in_place(node))
        viewed = self._viewed(node) if seen else None
        for index, value in enumerate(node.outputs):
            if viewed is not None and source is not None:
                self.root[value] = self.root.get(source, source)
                self._strides[value] = viewed[index]
                continue
            self.root[value] = value
            self.size[value] = -(-(nbytes(value) or 0) // ALIGN) * ALIGN
        if _keeps_no_probabilities(node, self._as_eager):
            y, probs = node.outputs[:2]
            self.root[probs] = y
            del self.size[probs]
            batch, heads, length, width = static_dims(y)
            self._strides[y] = (length * heads * width, width, heads * width, 1)

    def scratch(self, node: ir.Node, logits_bytes: int) -> int:
        """Return the bytes that a node needs while it runs, beside what it reads and gives."""
        if (node.domain, node.op_type) == (DOMAIN, "LinearCrossEntropy"):
            return _scores(node, logits_bytes)
        if node.domain != DOMAIN or node.op_type not in ("Attention", "AttentionGrad"):
            return 0
        probs = node.outputs[1] if node.op_type == "Attention" and len(node.outputs) > 1 else None
        if node.op_type == "AttentionGrad":
            probs = node.inputs[4]
        q = node.inputs[0]
        assert q is not None
        small = self.size.get(self.root.get(q, q), 0)
        # Dropped probabilities; going backward their adjoint, too.
        large = self.size.get(probs, 0) if probs is not None else 0
        return small + large * (2 if node.op_type == "AttentionGrad" else 1)

    def _viewed(self, node: ir.Node) -> list[Strides] | None:
        """The outputs' strides as views on the input; None if they need a copy."""
        source = node.inputs[0]
        assert source is not None
        shape = static_dims(source)
        strides = self._strides.get(source) or contiguous(shape)
        first = static_dims(node.outputs[0])
        view = record_of(node).view
        if view is View.RESHAPED:
            strides_after = reshaped(shape, strides, first)
            return None if strides_after is None else [strides_after]
        if view is View.PERMUTED:
            perm = node.attributes["perm"].as_ints() if "perm" in node.attributes else range(len(shape))[::-1]
            return [tuple(strides[i] for i in perm)]
        if view is View.REPEATED:
            wide = (*([0] * (len(first) - len(shape))), *strides)
            sizes = (*([1] * (len(first) - len(shape))), *shape)
            return [tuple(0 if have != want else s for have, want, s in zip(sizes, first, wide, strict=True))]
        if node.op_type == "Slice" and len(node.inputs) > 4:
            steps = node.inputs[4]
            if steps is None or steps.const_value is None or bool((steps.const_value.numpy() != 1).any()):
                return None
        return [strides] * len(node.outputs)


def _is_scaled_in_place(node: ir.Node) -> bool:
    scales = record_of(node).view is View.SCALED
    return scales and node.inputs[0] is not None and len(node.inputs[0].uses()) == 1


def _scores(node: ir.Node, logits_bytes: int) -> int:
    """Bytes of a classifier's scores, which exist for some rows at a time."""
    hidden, weight = node.inputs[0], node.inputs[2]
    assert hidden is not None and weight is not None and hidden.dtype is not None
    transposed = "transB" not in node.attributes or node.attributes["transB"].as_int() == 1
    classes = static_dims(weight)[0 if transposed else 1]
    whole = math.ceil(static_dims(hidden)[0] * classes * hidden.dtype.itemsize)
    return whole // max(1, -(-whole // logits_bytes))


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
    strides_after: list[int] = []
    for size in reversed(wanted):
        if size == 1:
            strides_after.append(runs[-1][1] if runs else 1)
            continue
        if not runs or runs[-1][0] % size:
            return None
        count, stride = runs.pop()
        strides_after.append(stride)
        if count > size:
            runs.append([count // size, stride * size])
    return tuple(reversed(strides_after))


def _keeps_no_probabilities(node: ir.Node, as_eager: bool) -> bool:
    """Whether attention makes its probabilities anew going backward, by one kernel or in tiles."""
    if (node.domain, node.op_type) != (DOMAIN, "Attention") or len(node.outputs) < 2:
        return False
    return runs_flash_for_cpu(node, as_eager) or runs_in_tiles(node)


def _gradient_read(node: ir.Node) -> ir.Value | None:
    """The gradient that an optimizer's update reads: it lies with the state."""
    if node.domain != DOMAIN or not node.inputs or node.inputs[0] is None or len(node.inputs) < 2:
        return None
    updated = updates_of(node.outputs[0])
    return node.inputs[1] if updated is not None and updated == node.inputs[0].name else None
