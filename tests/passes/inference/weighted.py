"""Graphs of open sizes with weights, passes applied to them, and what stock onnxruntime makes of both."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_ir as ir
import onnxruntime

from ontrain.functions import inline_all
from ontrain.graph import Builder, Role, new_model, rebuild, set_role
from ontrain.passes.inference import with_weights

FLOAT = ir.TensorType(ir.DataType.FLOAT)
SIZES = {"batch": 3, "length": 5}


def weighted(make: Callable, inputs: dict[str, list], weights: dict[str, np.ndarray]) -> ir.Model:
    """A model of inputs of open sizes, and of weights behind them, whose outputs are what `make(op, *both)` gives."""
    fed = [set_role(ir.Value(name=n, shape=ir.Shape(s), type=FLOAT), Role.INPUT) for n, s in inputs.items()]
    held = [
        set_role(ir.Value(name=n, shape=ir.Shape(w.shape), type=ir.TensorType(ir.tensor(w).dtype)), Role.PARAMETER)
        for n, w in weights.items()
    ]
    model = new_model([*fed, *held], "test")
    op = Builder(model.graph)
    with op.arithmetic():
        results = make(op, *fed, *held)
    for number, value in enumerate(results if isinstance(results, tuple) else (results,)):
        value.name = f"y{number}"
        model.graph.outputs.append(value)
    with_weights(model, weights)
    return model


def applied(graph_pass, model: ir.Model, *, count: int) -> ir.Model:
    """The model after a pass, whose outputs in stock onnxruntime are those from before."""
    weights = model.graph.meta["ontrain.weights"]
    fed = {v.name: _random(v) for v in model.graph.inputs if v.name not in weights.values}
    before = outputs(model, weights.values, fed)
    rewritten, changed = graph_pass.apply(model)
    assert changed == count
    rewritten = weights.settle(rewritten)
    for a, b in zip(before, outputs(rewritten, weights.values, fed), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=2e-6 * np.abs(b).max())  # sums of some 30 numbers of float32
    return rewritten


def outputs(model: ir.Model, weights: dict, fed: dict[str, np.ndarray]) -> list[np.ndarray]:
    proto = ir.to_proto(inline_all(rebuild(model)))
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    held = {name: np.asarray(w.numpy() if hasattr(w, "numpy") else w) for name, w in weights.items()}
    names = {value.name for value in session.get_inputs()}
    return session.run(None, {name: array for name, array in {**fed, **held}.items() if name in names})


def operators(model: ir.Model) -> list[str]:
    return [node.op_type for node in model.graph]


def random(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def _random(value: ir.Value) -> np.ndarray:
    return random(*(d if isinstance(d, int) else SIZES[d.value] for d in value.shape))
