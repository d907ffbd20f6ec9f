"""Layers of com.microsoft that onnxruntime's optimizer writes: normalizations, activations, products, embeddings."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.drawn.draw import Draw
from tests.drawn.nodes.node import Node, attributes, node

WIDTH = 8


def _node(op_type: str, inputs: list, settings: dict[str, Any] | None = None, outputs: int = 1) -> Node:
    return Node(op_type, inputs, settings or {}, outputs, domain="com.microsoft")


def _hidden(draw: Draw) -> np.ndarray:
    return draw.array(*draw.sizes(2, 1, 4), WIDTH)


@node
def fused_activation(draw: Draw) -> Node:
    """Activations with a bias or without."""
    op_type, x = draw.choice(["BiasGelu", "FastGelu", "Gelu", "QuickGelu"]), _hidden(draw)
    if op_type == "QuickGelu":
        return _node(op_type, [x], attributes(alpha=draw.choice([None, 1.0, 0.5])))
    bias = {"BiasGelu": draw.array(WIDTH), "Gelu": None, "FastGelu": draw.maybe(draw.array(WIDTH))}[op_type]
    return _node(op_type, [x] if bias is None else [x, bias])


@node.share(2)
def skip_normalization(draw: Draw) -> Node:
    """Sums and their norms, the sum itself among the outputs."""
    simple = draw.flag()
    x = _hidden(draw)
    skip = draw.choice([draw.array(*x.shape), draw.array(1, *x.shape[1:]), draw.array(*x.shape[1:])])
    inputs = [x, skip, draw.array(WIDTH)]
    inputs += [] if simple else [draw.maybe(draw.array(WIDTH))]
    inputs.append(draw.maybe(draw.array(WIDTH)))
    op_type = "SkipSimplifiedLayerNormalization" if simple else "SkipLayerNormalization"
    return _node(op_type, inputs, dict(epsilon=draw.choice([1e-5, 1e-2])), draw.choice([1, 4]))


@node
def embedding_normalization(draw: Draw) -> Node:
    """Words, places and segments, with a mask that is summed up."""
    batch, length = draw.sizes(2, 1, 4)
    segments = draw.flag()

    def rows() -> np.ndarray:
        return draw.indices(0, 3, (batch, length)).astype(np.int32)

    table, further = draw.array(5, WIDTH), draw.array(3, WIDTH)
    inputs = [
        rows(), rows() if segments else None, table, draw.array(6, WIDTH), further if segments else None,
        draw.array(WIDTH), draw.array(WIDTH), draw.maybe(draw.indices(0, 2, (batch, length)).astype(np.int32)),
        draw.maybe(rows()),
    ]  # fmt: skip
    settings = attributes(epsilon=draw.choice([None, 1e-2]), mask_index_type=draw.choice([None, 0, 1]))
    return _node("EmbedLayerNormalization", inputs, settings, draw.choice([2, 3]))


@node.share(2)
def fused_matmul(draw: Draw) -> Node:
    """Transposed, of several batches, weighed."""
    first, second = draw.flag(), draw.flag()
    rank = draw.integer(0, 2)
    rows, inner, columns = draw.sizes(3, 1, 4)
    batch = draw.sizes(rank, 1, 3)
    other = draw.choice([batch, (), tuple(1 for _ in batch)])
    by_batch = draw.flag(0.2) and rank > 0
    a = (*batch, inner, rows) if first else (*batch, rows, inner)
    b = (*other, columns, inner) if second else (*other, inner, columns)
    if by_batch:
        a = (a[-2], *batch[1:], batch[0], a[-1]) if len(batch) > 1 else (a[-2], batch[0], a[-1])
    settings = dict(transA=int(first), transB=int(second), alpha=draw.choice([1.0, 0.5]), transBatchA=int(by_batch))
    return _node("FusedMatMul", [draw.array(*a), draw.array(*b)], settings)


@node
def fused_gemm(draw: Draw) -> Node:
    """Gemm with an activation."""
    rows, inner, columns = draw.sizes(3, 1, 4)
    first, second = draw.flag(), draw.flag()
    shapes = [(inner, rows) if first else (rows, inner), (columns, inner) if second else (inner, columns)]
    settings = attributes(
        transA=int(first), transB=int(second), alpha=draw.choice([1.0, 0.5]), beta=draw.choice([1.0, 2.0]),
        activation=draw.choice(["Relu", "LeakyRelu", "Tanh", "Sigmoid", "Softplus", "HardSigmoid"]),
    )  # fmt: skip
    if settings["activation"] == "LeakyRelu":
        settings["activation_alpha"] = 0.2
    if settings["activation"] == "HardSigmoid":
        settings |= dict(activation_alpha=0.3, activation_beta=0.4)
    return _node("FusedGemm", [*(draw.array(*shape) for shape in shapes), draw.array(columns)], settings)


@node
def fused_convolution(draw: Draw) -> Node:
    """A convolution with an activation, and a sum before it."""
    groups = draw.choice([1, 2])
    x, weight = draw.array(2, 4, *draw.sizes(2, 4, 6)), draw.array(4, 4 // groups, 3, 3)
    activation = draw.choice(["Relu", "LeakyRelu", "Tanh", "Sigmoid", "Clip", "HardSigmoid"])
    params = {"LeakyRelu": [0.2], "Clip": [-0.5, 0.7], "HardSigmoid": [0.3, 0.4]}.get(activation)
    summed = draw.array(2, 4, *x.shape[2:]) if draw.flag(0.4) else None
    settings = attributes(activation=activation, activation_params=params, pads=[1] * 4, group=groups)
    return _node("FusedConv", [x, weight, draw.maybe(draw.array(4)), summed], settings)


@node
def older_form(draw: Draw) -> Node:
    """Operators that became standard later."""
    x = draw.array(*draw.sizes(2, 2, 4))
    return draw.choice([
        lambda: _node("CDist", [x, draw.array(3, x.shape[1])], dict(metric=draw.choice(["euclidean", "sqeuclidean"]))),
        lambda: _node("ExpandDims", [x, np.array(draw.integer(-3, 2), np.int32)]),
        lambda: _node("Trilu", [x, np.array(draw.integer(-4, 4))], dict(upper=draw.choice([0, 1]))),
        lambda: _node("Inverse", [draw.array(*draw.sizes(draw.integer(0, 2), 1, 3), 3, 3)]),
        lambda: _node("Range", [np.float32(1), np.float32(draw.integer(-5, 6)), draw.maybe(np.float32(0.5))]),
        lambda: _node("Unique", [np.round(draw.array(7), 0)], {}, 3),
        lambda: _node("TransposeMatMul", [x, draw.array(x.shape[0], 3)], dict(transA=1, alpha=0.5)),
        lambda: _node("Pad", [x, np.array([*draw.sizes(4, 0, 2)]), np.float32([0.5])], dict(mode="constant")),
        lambda: _node("GatherND", [x, draw.indices(0, 2, (3, draw.integer(1, 2))).astype(np.int64)]),
        lambda: _node("MurmurHash3", [draw.indices(0, 99, (3,)).astype(np.int32)],
                      dict(seed=draw.integer(0, 9), positive=draw.choice([0, 1]))),
        lambda: _node("GridSample", [draw.array(1, 2, 4, 5), draw.array(1, 3, 2, 2)],
                      dict(mode=draw.choice(["bilinear", "nearest", "bicubic"]), align_corners=draw.choice([0, 1]),
                           padding_mode=draw.choice(["zeros", "border", "reflection"]))),
    ])()  # fmt: skip
