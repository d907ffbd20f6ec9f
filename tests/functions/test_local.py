"""Composites as functions inside the file: onnx checks them in full, and stock onnxruntime computes the same."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest

from ontrain.functions import with_local_functions
from ontrain.graph import DOMAIN, Builder, new_model, rebuild
from tests.autodiff.graphs import SampleGraph
from tests.autodiff.samples import SAMPLES

# One sample for each: together with their gradients they hold every kind of composite that a step graph has.
FORWARD = (
    "Attention", "AveragePool", "BatchNormalization", "Conv", "ConvTranspose", "Embedding", "Gelu",
    "LayerNormalization", "LogSoftmax", "MaxPool", "SoftmaxCrossEntropyLoss", "Softmax",
)  # fmt: skip
CHOSEN = [next(s for s in SAMPLES if s.op_type == name and s.dtype == "float64") for name in FORWARD]


def run(model, feeds):
    proto = ir.to_proto(model)
    onnx.checker.check_model(proto, full_check=True)
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {i.name: feeds[i.name] for i in session.get_inputs()})


@pytest.mark.parametrize("sample", CHOSEN, ids=FORWARD)
def test_onnxruntime_computes_the_same_from_functions_as_the_evaluator_from_bodies(sample, rng):
    arrays = [a.astype(np.float32) if a is not None and a.dtype.kind == "f" else a for a in sample.draw(rng)]
    graph = SampleGraph(sample, arrays)
    seeds = graph.seeds(graph.y, rng, "dy")
    outputs = [v for v in (*graph.y, *graph.gradient(graph.y, seeds, graph.wrt)) if v is not None and v.producer()]
    wanted = graph.evaluator(outputs)()
    graph.model.graph.outputs.clear()
    graph.model.graph.outputs.extend(dict.fromkeys(outputs))
    model = with_local_functions(rebuild(graph.model))
    assert {n.op_type for n in model.graph if n.domain == DOMAIN} == {f.name for f in model.functions.values()} - {
        n.op_type for f in model.functions.values() for n in f
    }
    results = dict(zip(dict.fromkeys(outputs), run(model, graph.feeds), strict=True))
    for value, expected in zip(outputs, wanted, strict=True):
        np.testing.assert_allclose(results[value], expected, rtol=1e-4, atol=1e-5 * max(1, np.abs(expected).max()))


def model_of(make, **shapes):
    inputs = [ir.Value(name=n, shape=ir.Shape(s), type=ir.TensorType(ir.DataType.FLOAT)) for n, s in shapes.items()]
    model = new_model(inputs, "test")
    results = make(Builder(model.graph), *inputs)
    model.graph.outputs.extend(results if isinstance(results, tuple) else (results,))
    return model


def test_each_form_is_an_overload_and_equal_forms_share_one():
    def make(op, x, y):
        first = op.composite("GeluGrad", x, x)
        return first, op.composite("GeluGrad", x, first), op.composite("GeluGrad", y, y)

    model = with_local_functions(model_of(make, x=[3], y=[2, 2]))
    assert [(f.name, f.overload) for f in model.functions.values()] == [("GeluGrad", ""), ("GeluGrad", "1")]
    assert [n.overload for n in model.graph] == ["", "", "1"]


def test_the_model_given_stays_as_it_is(rng):
    model = model_of(lambda op, x, y: op.composite("GeluGrad", x, y), x=[3], y=[3])
    before = ir.to_proto(model).SerializeToString()
    with_local_functions(model)
    assert ir.to_proto(model).SerializeToString() == before
    assert not model.functions
