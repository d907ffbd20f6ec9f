"""Operators that onnxruntime has, but not as training needs them, written in others."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from ontrain.functions import without_negatives
from ontrain.graph import Builder, static_dims
from ontrain.operators import Chance, dropped_share, record_of, resolved_pads
from ontrain.providers.onnxruntime.random import Streams, drawn_share

__all__ = ["RULES", "Inputs", "Outputs", "is_random"]

Inputs = list[ir.Value | None]
Outputs = Sequence[ir.Value | None]
Rule = Callable[[Builder, Streams, ir.Node, Inputs], Outputs | None]
"""Writes a node, given its inputs in the new graph, in other operators; None keeps it."""
RULES: dict[str, Rule] = {}
"""Rules by operator."""


def _rewrites(*op_types: str) -> Callable[[Rule], Rule]:
    def register(rule: Rule) -> Rule:
        RULES.update(dict.fromkeys(op_types, rule))
        return rule

    return register


def is_random(node: ir.Node) -> bool:
    """Whether a node draws random numbers."""
    if node.op_type == "Dropout":
        return bool(dropped_share(node))
    return node.op_type in RULES and record_of(node).chance is Chance.ALWAYS


@_rewrites("Dropout")
def _dropout(op: Builder, streams: Streams, node: ir.Node, inputs: Inputs) -> Outputs:
    x, share, shape = inputs[0], dropped_share(node), static_dims(node.outputs[0])
    if not share:
        return [op.Identity(x), op.Expand(op.const(True), list(shape)) if len(node.outputs) > 1 else None]
    mask = streams.keep(op, shape, share)
    return [op.Where(mask, op.Mul(x, 1 / (1 - drawn_share(share))), 0.0), mask]


def _of(node: ir.Node) -> tuple[tuple[int, ...], ir.DataType]:
    dtype = node.outputs[0].dtype
    assert dtype is not None
    return static_dims(node.outputs[0]), dtype


def _attribute(node: ir.Node, name: str, default: Any) -> Any:
    return node.attributes[name].value if name in node.attributes else default


@_rewrites("RandomUniform", "RandomUniformLike")
def _random_uniform(op: Builder, streams: Streams, node: ir.Node, inputs: Inputs) -> Outputs:
    low, high = _attribute(node, "low", 0.0), _attribute(node, "high", 1.0)
    uniform = streams.uniform(op, *_of(node))
    return [uniform if (low, high) == (0.0, 1.0) else op.Add(op.Mul(uniform, high - low), low)]


@_rewrites("RandomNormal", "RandomNormalLike")
def _random_normal(op: Builder, streams: Streams, node: ir.Node, inputs: Inputs) -> Outputs:
    mean, scale = _attribute(node, "mean", 0.0), _attribute(node, "scale", 1.0)
    return [op.Add(op.Mul(streams.normal(op, *_of(node)), scale), mean)]


@_rewrites("Bernoulli")
def _bernoulli(op: Builder, streams: Streams, node: ir.Node, inputs: Inputs) -> Outputs:
    (p,) = inputs
    assert p is not None and p.dtype is not None
    shape, dtype = _of(node)
    return [op.Cast(op.Less(streams.uniform(op, shape, p.dtype), p), to=dtype)]


@_rewrites("BatchNormalization")
def _batch_normalization(op: Builder, streams: Streams, node: ir.Node, inputs: Inputs) -> Outputs | None:
    """In training mode by reductions: the kernel's own training mode is lost where a Conv before it is fused with it.

    Source: https://onnx.ai/onnx/operators/onnx__BatchNormalization.html
    """
    if not _attribute(node, "training_mode", 0):
        return None
    x, scale, bias, mean, var = inputs
    assert x is not None and mean is not None and var is not None
    rank = len(static_dims(x))
    axes, channels = [0, *range(2, rank)], [1, -1, *[1] * (rank - 2)]
    batch_mean = op.ReduceMean(op.Cast(x, to=mean.dtype), axes, keepdims=1)
    centred = op.Cast(x, to=mean.dtype) - batch_mean
    batch_var = op.ReduceMean(centred * centred, axes, keepdims=1)
    inverse = op.Reciprocal(op.Sqrt(batch_var + _attribute(node, "epsilon", 1e-5)))
    y = op.Cast(centred * inverse, to=x.dtype) * op.Reshape(scale, channels) + op.Reshape(bias, channels)
    keep = _attribute(node, "momentum", 0.9)
    return [
        y,
        mean * keep + op.Reshape(batch_mean, [-1]) * (1 - keep),
        var * keep + op.Reshape(batch_var, [-1]) * (1 - keep),
    ][: len(node.outputs)]


@_rewrites("AveragePool", "Conv", "LpPool", "MaxPool")
def _windows(op: Builder, streams: Streams, node: ir.Node, inputs: Inputs) -> Outputs | None:
    """With its pads written out where windows have gaps: onnxruntime resolves `auto_pad` as if there were none.

    Source: https://onnx.ai/onnx/operators/onnx__AveragePool.html, the formula of `pad_shape`
    """
    x, gaps = inputs[0], _attribute(node, "dilations", [])
    if not _attribute(node, "auto_pad", "NOTSET").startswith("SAME") or all(d == 1 for d in gaps):
        return None
    assert x is not None
    space, rank = static_dims(x)[2:], len(gaps)
    w = inputs[1] if node.op_type == "Conv" else None
    kernel = node.attributes["kernel_shape"].as_ints() if w is None else static_dims(w)[2:]
    spans, steps = [(k - 1) * d + 1 for k, d in zip(kernel, gaps, strict=True)], _attribute(node, "strides", [1] * rank)
    settings = {name: attribute.value for name, attribute in node.attributes.items()}
    settings["pads"] = resolved_pads(settings.pop("auto_pad"), None, spans, space, steps)
    settings.pop("ceil_mode", None)  # the result's size is what `auto_pad` says
    results = op.call("", node.op_type, inputs, settings, len(node.outputs))
    return [results] if isinstance(results, ir.Value) else list(results)


@_rewrites("ScatterND")
def _scatter_nd(op: Builder, streams: Streams, node: ir.Node, inputs: Inputs) -> Outputs | None:
    """With a reduction by ScatterElements over rows: ScatterND's threads lose updates that meet at one place."""
    reduction = _attribute(node, "reduction", "none")
    if reduction == "none":
        return None
    x, ids, updates = inputs
    assert x is not None and ids is not None
    shape, count = static_dims(x), math.prod(static_dims(ids)[:-1])
    depth = static_dims(ids)[-1]
    row = math.prod(shape[depth:])
    sizes = np.array(shape[:depth], np.int64)
    strides = np.array([math.prod(shape[i + 1 : depth]) for i in range(depth)], np.int64)
    positive = op.Where(op.Less(ids, 0), op.Add(ids, sizes), ids)
    numbers = op.Reshape(op.ReduceSum(op.Mul(positive, strides), [-1], keepdims=0), [count, 1])
    rows = op.Reshape(x, [math.prod(shape[:depth]), row])
    summed = op.ScatterElements(rows, op.Expand(numbers, [count, row]), op.Reshape(updates, [count, row]), axis=0,
                                reduction=reduction)  # fmt: skip
    return [op.Reshape(summed, list(shape))]


@_rewrites("SoftmaxCrossEntropyLoss")
def _softmax_cross_entropy_loss(op: Builder, streams: Streams, node: ir.Node, inputs: Inputs) -> Outputs:
    """With LogSoftmax along the last axis, which is twice as fast as along another, and one gather.

    Source: https://onnx.ai/onnx/operators/onnx__SoftmaxCrossEntropyLoss.html
    """
    scores, labels, weights = [*inputs, None][:3]
    assert scores is not None
    rank = len(static_dims(scores))
    last = [0, *range(2, rank), 1]  # [N, …, C]
    rows = op.LogSoftmax(scores if rank == 2 else op.Transpose(scores, perm=last), axis=-1)
    log_prob = rows if rank == 2 else op.Transpose(rows, perm=[0, rank - 1, *range(1, rank - 1)])
    return [_negative_log_likelihood(op, node, rows, labels, weights), log_prob][: len(node.outputs)]


@_rewrites("NegativeLogLikelihoodLoss")
def _negative_log_likelihood_loss(op: Builder, streams: Streams, node: ir.Node, inputs: Inputs) -> Outputs:
    scores, labels, weights = [*inputs, None][:3]
    assert scores is not None
    rank = len(static_dims(scores))
    rows = scores if rank == 2 else op.Transpose(scores, perm=[0, *range(2, rank), 1])
    return [_negative_log_likelihood(op, node, rows, labels, weights)]


def _negative_log_likelihood(
    op: Builder, node: ir.Node, rows: ir.Value, labels: ir.Value | None, weights: ir.Value | None
) -> ir.Value:
    """The loss from log-probabilities [N, …, C] and labels [N, …]."""
    ignored, reduction = _attribute(node, "ignore_index", None), _attribute(node, "reduction", "mean")
    valid = op.Not(op.Equal(labels, ignored)) if ignored is not None else None
    safe = labels if valid is None else op.Where(valid, labels, 0)
    assert safe is not None
    safe = without_negatives(op, safe)  # onnxruntime would count them from the last class
    loss = op.Neg(op.Squeeze(op.GatherElements(rows, op.Unsqueeze(safe, [-1]), axis=-1), [-1]))
    weight = op.Gather(weights, safe, axis=0) if weights is not None else None
    if valid is not None:
        weight = op.Where(valid, weight if weight is not None else op.const(1.0, rows.dtype), 0.0)
        loss = op.Where(valid, loss, 0.0)
    loss = loss if weight is None else loss * weight
    total: ir.Value = loss
    if reduction == "sum" or (reduction == "mean" and weight is not None):
        total = op.ReduceSum(loss, keepdims=0)
        total = op.Div(total, op.ReduceSum(weight, keepdims=0)) if reduction == "mean" else total
    elif reduction == "mean":
        total = op.ReduceMean(loss, keepdims=0)
    return total
