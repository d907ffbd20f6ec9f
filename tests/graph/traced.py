"""Models that are built at some sizes, and generalised."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
from onnx.reference import ReferenceEvaluator

from ontrain.graph import Builder, new_model
from ontrain.graph.generalise import generalise


def traced(build, *shapes):
    """A model of float inputs x0, x1, … with these shapes."""
    inputs = [
        ir.Value(name=f"x{i}", shape=ir.Shape(shape), type=ir.TensorType(ir.DataType.FLOAT))
        for i, shape in enumerate(shapes)
    ]
    model = new_model(inputs, "traced")
    op = Builder(model.graph)
    with op.arithmetic():
        model.graph.outputs.append(build(op, *inputs))
    return model


def generalised(build, *shapes):
    """`build`, which needs numbers for sizes, as one graph for all of them."""

    def make(sizes):
        concrete = [[sizes.get(d, d) for d in shape] for shape in shapes]
        return traced(build, *concrete)

    return generalise(traced(lambda op, *xs: op.Identity(xs[0]), *shapes), make)


def run(model, *arrays):
    proto = ir.to_proto(model)
    return ReferenceEvaluator(proto).run(None, {f"x{i}": a for i, a in enumerate(arrays)})[0]


def size(value, axis):
    return int(value.shape[axis])


REFUSED = {
    "no polynomial": lambda op, x: op.ReduceSum(x, [0], keepdims=0) * float(size(x, 0) ** 0.5),
    "entries of a constant": lambda op, x: x + op.const(
        np.random.default_rng(size(x, 0)).standard_normal((size(x, 0), 1, 1)).astype(np.float32)
    ),
}  # fmt: skip
