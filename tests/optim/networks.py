"""Forward graphs that the tests of a training step begin with."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ontrain.graph import Builder, Role, new_model, set_role
from ontrain.optim import OptimizerSpec

NAMES = ("w1", "b1", "w2", "b2")
IN, HIDDEN, CLASSES = 4, 8, 3
PLAIN = OptimizerSpec("SGD")


def value(name, shape, role=Role.PARAMETER, dtype=ir.DataType.FLOAT):
    return set_role(ir.Value(name=name, shape=ir.Shape(shape), type=ir.TensorType(dtype)), role)


def network(rows=8, unused=False):
    """scores = tanh(x w1 + b1) w2 + b2 with softmax cross entropy that ignores label -100."""
    x, y = value("x", [rows, IN], Role.INPUT), value("y", [rows], Role.LABEL, ir.DataType.INT64)
    w1, b1 = value("w1", [IN, HIDDEN]), value("b1", [HIDDEN])
    w2, b2 = value("w2", [HIDDEN, CLASSES]), value("b2", [CLASSES])
    model = new_model([x, y, w1, b1, w2, b2, *([value("pooler", [5])] if unused else [])], "network")
    op = Builder(model.graph)
    scores = op.Add(op.MatMul(op.Tanh(op.Add(op.MatMul(x, w1), b1)), w2), b2)
    loss = op.SoftmaxCrossEntropyLoss(scores, y, ignore_index=-100)
    loss.name, scores.name = "loss", "scores"
    model.graph.outputs.extend([loss, scores])
    return model


def least_squares(shape=(), **changes):
    """loss = mean (w x)², so that a step can be told by hand."""
    x, w = value("x", [2], Role.INPUT), value("w", [2])
    model = new_model([x, w], "least_squares")
    op = Builder(model.graph)
    y = op.Mul(w, x)
    loss = op.ReduceMean(op.Mul(y, y), keepdims=0)
    loss = op.Reshape(loss, list(shape)) if shape else loss
    loss.name = changes.get("loss", "loss")
    model.graph.outputs.append(loss)
    return model


def start(rng):
    shapes = {"w1": (IN, HIDDEN), "b1": (HIDDEN,), "w2": (HIDDEN, CLASSES), "b2": (CLASSES,)}
    return {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


def batch(rng, rows=8, ignored=0):
    labels = rng.integers(0, CLASSES, rows)
    labels[:ignored] = -100
    return {"x": rng.normal(size=(rows, IN)).astype(np.float32), "y": labels}
