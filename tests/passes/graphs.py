"""Small graphs for passes, their values by onnx's evaluator, and a pass applied without changing these."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
from onnx.reference import ReferenceEvaluator

from ontrain.functions import inline_all
from ontrain.graph import Builder, new_model, rebuild

FLOAT = ir.TensorType(ir.DataType.FLOAT)


def graph(make, **shapes):
    """A model whose inputs have these shapes and whose outputs are what `make(op, *inputs)` returns."""
    inputs = [ir.Value(name=name, shape=ir.Shape(shape), type=FLOAT) for name, shape in shapes.items()]
    model = new_model(inputs, "test")
    op = Builder(model.graph)
    with op.arithmetic():
        results = make(op, *inputs)
    for i, value in enumerate(results if isinstance(results, tuple) else (results,)):
        value.name = f"y{i}"
        model.graph.outputs.append(value)
    return model


def values(model, seed=0):
    rng = np.random.default_rng(seed)
    feeds = {v.name: rng.standard_normal(v.shape.numpy()).astype(np.float32) for v in model.graph.inputs}
    return ReferenceEvaluator(ir.to_proto(inline_all(rebuild(model)))).run(None, feeds)


def operators(model):
    return [node.op_type for node in model.graph]


def applied(graph_pass, model, *, count, bitwise=True):
    before = values(model)
    rewritten, changed = graph_pass.apply(model)
    rewritten = rebuild(rewritten)
    assert changed == count
    for a, b in zip(before, values(rewritten), strict=True):
        np.testing.assert_array_equal(a, b) if bitwise else np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    return rewritten
