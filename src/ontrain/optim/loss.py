"""Losses for models that have none of their own, and how many labels a mean loss averages over."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from ontrain.errors import GraphError, OptionError, nearest
from ontrain.graph import Builder, Role, dims, is_float, rebuild, set_role
from ontrain.operators import record_of

__all__ = [
    "LOSSES",
    "add_loss",
    "bce_with_logits",
    "l1",
    "loss_weight",
    "mse",
    "nll",
    "softmax_cross_entropy",
]


def softmax_cross_entropy(
    op: Builder, scores: ir.Value, labels: ir.Value,
    *, ignore_index: int | None = None, weights: Sequence[float] | None = None, class_axis: int = 1,
) -> ir.Value:  # fmt: skip
    """Mean cross entropy of scores [N, C, …] and integer labels [N, …], 0-d (torch.nn.CrossEntropyLoss).

    Args:
        op: builder of the graph.
        scores: unnormalised log-probabilities.
        labels: class of each row.
        ignore_index: label of rows that count for nothing.
        weights: weight of each class; the mean is divided by the sum of the rows' weights.
        class_axis: 1, or -1 for scores [N, …, C] as language models give them.
    """
    return _classification(op, "SoftmaxCrossEntropyLoss", scores, labels, ignore_index, weights, class_axis)


def nll(
    op: Builder, log_probs: ir.Value, labels: ir.Value,
    *, ignore_index: int | None = None, weights: Sequence[float] | None = None, class_axis: int = 1,
) -> ir.Value:  # fmt: skip
    """Mean negative log-likelihood of log-probabilities [N, C, …] and labels [N, …], 0-d (torch.nn.NLLLoss)."""
    return _classification(op, "NegativeLogLikelihoodLoss", log_probs, labels, ignore_index, weights, class_axis)


def mse(op: Builder, output: ir.Value, label: ir.Value) -> ir.Value:
    """Mean of (output − label)², 0-d (torch.nn.MSELoss)."""
    difference = op.Sub(output, label)
    loss: ir.Value = op.ReduceMean(op.Mul(difference, difference), keepdims=0)
    return loss


def l1(op: Builder, output: ir.Value, label: ir.Value) -> ir.Value:
    """Mean of |output − label|, 0-d (torch.nn.L1Loss)."""
    loss: ir.Value = op.ReduceMean(op.Abs(op.Sub(output, label)), keepdims=0)
    return loss


def bce_with_logits(op: Builder, logits: ir.Value, label: ir.Value) -> ir.Value:
    """Mean of log(1 + eˣ) − x·y for logits x and probabilities y of one shape, 0-d (torch.nn.BCEWithLogitsLoss).

    log(1 + eˣ) is taken as m + log(e⁻ᵐ + eˣ⁻ᵐ) with m = max(x, 0): nothing overflows, and as the derivative by m is
    zero, the gradient is right at x = 0 too, where max and abs have none.
    """
    with op.arithmetic():
        m = op.Relu(logits)
        loss: ir.Value = op.ReduceMean(m + op.Log(op.Exp(-m) + op.Exp(logits - m)) - logits * label, keepdims=0)
    return loss


LOSSES: dict[str, Callable[..., ir.Value]] = {
    "SoftmaxCrossEntropy": softmax_cross_entropy,
    "NLL": nll,
    "MSE": mse,
    "L1": l1,
    "BCEWithLogits": bce_with_logits,
}
"""Every loss that `add_loss` knows, by name."""

TORCH_NAMES = {
    "CrossEntropyLoss": "SoftmaxCrossEntropy",
    "NLLLoss": "NLL",
    "MSELoss": "MSE",
    "L1Loss": "L1",
    "BCEWithLogitsLoss": "BCEWithLogits",
}
"""What torch.nn calls them."""


def add_loss(model: ir.Model, kind: str, output: str, label: str = "label", **options: Any) -> ir.Model:
    """Return the model with the loss of one of its outputs as a first output named "loss".

    Args:
        model: left untouched.
        kind: a name in `LOSSES`.
        output: the model's output to compare.
        label: the input to compare it with; made with role LABEL where the model has none of that name, int64 for
            classification and like the output otherwise.
        options: arguments of the loss function: ignore_index, weights, class_axis.

    Raises:
        OptionError: no such loss, or no such output.
    """
    if kind not in LOSSES:
        raise OptionError(f"there is no loss {kind!r}", way_out=f"nearest: {nearest(kind, LOSSES, len(LOSSES))}")
    copy = rebuild(model)
    graph = copy.graph
    scores = named_output(graph, output)
    op = Builder(graph)
    if op.fresh("loss") != "loss":
        raise GraphError("the model has a value named 'loss' already", way_out="train on it, or rename it")
    labels = next((v for v in graph.inputs if v.name == label), None)
    if labels is None:
        labels = _label_like(op, kind, label, scores, options.get("class_axis", 1))
        graph.inputs.append(labels)
    loss = LOSSES[kind](op, scores, labels, **options)
    loss.name = "loss"
    graph.outputs.insert(0, loss)
    return copy


def named_output(graph: ir.Graph, name: str) -> ir.Value:
    """Return the output of this name.

    Raises:
        OptionError: there is none.
    """
    outputs = {v.name or "": v for v in graph.outputs}
    if name not in outputs:
        raise OptionError(f"the model has no output {name!r}", way_out=f"nearest: {nearest(name, outputs)}")
    return outputs[name]


def loss_weight(op: Builder, graph: ir.Graph, loss: ir.Value) -> ir.Value:
    """Return how much the mean `loss` averages over, 0-d float32: mean losses weighted by it add up to the sum.

    The labels that are not ignored (or the sum of their class weights) for a mean classification loss, the number of
    reduced elements for ReduceMean; found through Identity, Cast, Reshape, Squeeze and constant factors. Any other
    loss weighs 1, so that accumulation averages plainly over micro-batches.
    """
    assert loss in graph.outputs or loss.graph is graph, f"{loss.name} is not of this graph"
    node = _mean(loss)
    if node is None:
        return op.const(np.float32(1))
    source = node.inputs[0]
    assert source is not None
    if node.op_type == "ReduceMean":
        return _size_ratio(op, source, node.outputs[0])
    return _label_weight(op, node)


def _classification(
    op: Builder, op_type: str, scores: ir.Value, labels: ir.Value,
    ignore_index: int | None, weights: Sequence[float] | None, class_axis: int,
) -> ir.Value:  # fmt: skip
    if class_axis not in (1, -1):
        raise OptionError(f"class_axis is {class_axis}", way_out="use 1 for scores [N, C, …] or -1 for [N, …, C]")
    shape = dims(scores)
    if class_axis == -1 and len(shape) > 2:
        if not isinstance(shape[-1], int):
            raise GraphError(f"the number of classes of {scores.name!r} is unknown", reason=f"its shape is {shape}")
        scores, labels = op.Reshape(scores, [-1, shape[-1]]), op.Reshape(labels, [-1])
    weight = None if weights is None else op.const(np.asarray(weights), scores.dtype)
    operands = (scores, labels) if weight is None else (scores, labels, weight)
    loss: ir.Value = op.call("", op_type, operands, {"reduction": "mean", "ignore_index": ignore_index})
    return loss


def _label_like(op: Builder, kind: str, name: str, output: ir.Value, class_axis: int) -> ir.Value:
    shape, dtype = list(dims(output)), output.dtype
    if kind in ("SoftmaxCrossEntropy", "NLL"):
        del shape[class_axis]
        dtype = ir.DataType.INT64
    assert dtype is not None
    if op.fresh(name) != name:
        raise GraphError(f"a value that is no input is named {name!r} already", way_out="choose another label name")
    return set_role(ir.Value(name=name, shape=ir.Shape(shape), type=ir.TensorType(dtype)), Role.LABEL)


def _mean(loss: ir.Value) -> ir.Node | None:
    """The node that takes the mean whose value, perhaps reshaped or times a constant, is the loss."""
    value: ir.Value | None = loss
    while value is not None:
        node = value.producer()
        if node is None:
            return None
        if record_of(node).labels is not None:
            reduction = node.attributes.get("reduction")
            mean = reduction is None or reduction.as_string() == "mean"
            return node if mean and value is node.outputs[0] else None
        if node.domain:
            return None
        if node.op_type == "ReduceMean" and not _keeps_size(node):
            return node
        value = _passed_on(node)
    return None


def _passed_on(node: ir.Node) -> ir.Value | None:
    """The one input whose mean the node's output still is, up to a constant factor."""
    if record_of(node).keeps_values:
        return node.inputs[0]
    if node.op_type in ("ReduceMean", "ReduceSum") and _keeps_size(node):
        return node.inputs[0]
    if node.op_type in ("Mul", "Div"):
        left, right = node.inputs
        assert left is not None and right is not None
        if right.const_value is not None:
            return left
        if node.op_type == "Mul" and left.const_value is not None:
            return right
    return None


def _keeps_size(node: ir.Node) -> bool:
    """Whether a reduction is over one element, as `.mean()` of a loss that is a scalar already."""
    shape = None if node.inputs[0] is None else node.inputs[0].shape
    return shape is not None and all(dim == 1 for dim in shape)


def _size_ratio(op: Builder, source: ir.Value, mean: ir.Value) -> ir.Value:
    count: ir.Value = op.Cast(op.Div(op.Size(source), op.Size(mean)), to=ir.DataType.FLOAT)
    return count


def _label_weight(op: Builder, node: ir.Node) -> ir.Value:
    labels, weights = node.inputs[1], node.inputs[2] if len(node.inputs) > 2 and not node.domain else None
    assert labels is not None and (weights is None or is_float(weights))
    ignored = node.attributes.get("ignore_index")
    if weights is None and ignored is None:
        count: ir.Value = op.Cast(op.Size(labels), to=ir.DataType.FLOAT)
        return count
    row = op.const(np.float32(1)) if weights is None else None
    safe, valid = labels, None
    if ignored is not None:
        valid = op.Not(op.Equal(labels, ignored.as_int()))
        safe = op.Where(valid, labels, 0)
    if row is None:
        row = op.Cast(op.Gather(weights, safe, axis=0), to=ir.DataType.FLOAT)
    total: ir.Value = op.ReduceSum(row if valid is None else op.Where(valid, row, 0.0), keepdims=0)
    return total
