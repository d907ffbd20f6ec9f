"""Reductions, softmax and normalizations."""

from __future__ import annotations

import numpy as np

from tests.drawn.draw import Draw
from tests.drawn.nodes.node import Node, attributes, node

CHANNELS = 4
REDUCTIONS = ["Sum", "Mean", "Max", "Min", "Prod", "L1", "L2", "LogSum", "LogSumExp", "SumSquare"]


@node.share(3)
def reduction(draw: Draw) -> Node:
    """Over all axes, some or none."""
    op_type, shape = draw.choice(REDUCTIONS), draw.sizes(draw.integer(1, 4), 1, 4)
    x = draw.array(*shape)
    x = np.abs(x) + np.float32(0.1) if op_type == "LogSum" else x
    axes = draw.maybe(np.array(draw.axes(len(shape), draw.integer(0, len(shape))), np.int64), 0.7)
    settings = attributes(keepdims=draw.choice([0, 1]), noop_with_empty_axes=draw.maybe(1, 0.3))
    return Node(f"Reduce{op_type}", [x, axes], settings, opset=18)


@node
def softmax(draw: Draw) -> Node:
    """Softmax, LogSoftmax and Hardmax, over an axis or, in old files, all from it on."""
    shape = draw.sizes(draw.integer(1, 3), 2, 5)
    settings = dict(axis=draw.integer(-len(shape), len(shape) - 1))
    op_type, opset = draw.choice(["Softmax", "LogSoftmax", "Hardmax"]), draw.choice([11, 13])
    return Node(op_type, [np.round(draw.array(*shape), 1)], settings, opset=opset)


def _images(draw: Draw) -> np.ndarray:
    return draw.array(2, CHANNELS, *draw.sizes(2, 3, 5))


def _scale_and_bias(draw: Draw, *shape: int) -> list[np.ndarray]:
    return [draw.array(*shape), draw.array(*shape)]


@node
def batch_norm(draw: Draw) -> Node:
    """BatchNormalization in inference."""
    variance = np.abs(draw.array(CHANNELS)) + np.float32(0.1)
    inputs = [_images(draw), *_scale_and_bias(draw, CHANNELS), draw.array(CHANNELS), variance]
    return Node("BatchNormalization", inputs, dict(epsilon=draw.choice([1e-5, 0.1])), opset=15)


@node
def instance_norm(draw: Draw) -> Node:
    """InstanceNormalization."""
    inputs = [_images(draw), *_scale_and_bias(draw, CHANNELS)]
    return Node("InstanceNormalization", inputs, dict(epsilon=draw.choice([1e-5, 0.1])))


@node
def layer_norm(draw: Draw) -> Node:
    """LayerNormalization from any axis on, with mean and inverse deviation or without."""
    x, axis = _images(draw), draw.integer(-4, 3)
    inputs = [x, *_scale_and_bias(draw, *x.shape[axis:])]
    return Node("LayerNormalization", inputs, dict(axis=axis), draw.choice([1, 3]))


@node
def group_norm(draw: Draw) -> Node:
    """GroupNormalization."""
    inputs = [_images(draw), *_scale_and_bias(draw, CHANNELS)]
    return Node("GroupNormalization", inputs, dict(num_groups=draw.choice([1, 2, 4])), opset=21)


@node
def local_response_norm(draw: Draw) -> Node:
    """LRN."""
    return Node("LRN", [_images(draw)], dict(size=draw.choice([1, 3, 5]), alpha=0.1, beta=0.7, bias=2.0))


@node
def power_norm(draw: Draw) -> Node:
    """LpNormalization."""
    return Node("LpNormalization", [_images(draw)], dict(axis=draw.integer(-4, 3), p=draw.choice([1, 2])))


@node
def mean_and_variance(draw: Draw) -> Node:
    """MeanVarianceNormalization."""
    axes = draw.choice([[0, 2, 3], [1], [0, 1, 2, 3]])
    return Node("MeanVarianceNormalization", [_images(draw)], dict(axes=axes), opset=13)


@node
def loss(draw: Draw) -> Node:
    """NegativeLogLikelihoodLoss and SoftmaxCrossEntropyLoss."""
    op_type = draw.choice(["NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss"])
    settings = attributes(reduction=draw.choice(["mean", "sum", "none"]), ignore_index=draw.maybe(2))
    inputs = [draw.array(3, 5, 2), draw.indices(0, 5, (3, 2)), draw.maybe(np.abs(draw.array(5)))]
    return Node(op_type, inputs, settings, opset=13)
