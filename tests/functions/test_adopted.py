"""The bodies of operators that a plain graph may not hold equal what their own runtimes compute."""

from __future__ import annotations

import dataclasses

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
import torch
from onnx.reference import ReferenceEvaluator

from ontrain.training import ORTTrainer, optim
from tests.autodiff.graphs import SampleGraph
from tests.autodiff.samples.adopted import CONTRIBUTED, LATER
from tests.autodiff.samples.sample import Sample

# onnxruntime has kernels of these for CUDA only.
_NOT_ON_A_CPU = ("BiasSplitGelu", "GroupNorm")
_ON_A_CPU = [s for s in CONTRIBUTED if s.op_type not in _NOT_ON_A_CPU]


def _graph(sample: Sample, rng: np.random.Generator) -> tuple[SampleGraph, np.ndarray]:
    """The sample in single precision, and what our body makes of it."""
    sample = dataclasses.replace(sample, dtype="float32")
    graph = SampleGraph(sample, sample.draw(rng))
    (y,) = graph.evaluator(graph.y[:1])()
    return graph, y


def _proto(graph: SampleGraph, opset: int) -> onnx.ModelProto:
    """The graph as it is, with the operator in it."""
    graph.model.graph.outputs[:] = graph.y[:1]
    graph.model.graph.opset_imports.clear()
    graph.model.graph.opset_imports.update({"": opset, "com.microsoft": 1})
    return ir.to_proto(graph.model)


@pytest.mark.parametrize("sample", _ON_A_CPU, ids=[f"{s.op_type}-{i}" for i, s in enumerate(_ON_A_CPU)])
def test_a_contributed_operator_equals_onnxruntimes_kernel(sample: Sample, rng: np.random.Generator) -> None:
    graph, y = _graph(sample, rng)
    session = onnxruntime.InferenceSession(_proto(graph, 23).SerializeToString(), providers=["CPUExecutionProvider"])
    (expected, *_) = session.run(None, graph.feeds)
    np.testing.assert_allclose(y, expected, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("sample", LATER, ids=[f"{s.op_type}-{i}" for i, s in enumerate(LATER)])
def test_an_operator_of_a_later_version_equals_onnxs_evaluator(sample: Sample, rng: np.random.Generator) -> None:
    graph, y = _graph(sample, rng)
    (expected, *_) = ReferenceEvaluator(_proto(graph, 28)).run(None, graph.feeds)
    np.testing.assert_allclose(y, expected, rtol=2e-5, atol=2e-6)


def _model(rng: np.random.Generator) -> onnx.ModelProto:
    helper, arrays = onnx.helper, onnx.numpy_helper
    weights = {
        "w": rng.standard_normal((4, 6)), "b": rng.standard_normal(6), "gamma": np.ones(6),
        "head": rng.standard_normal((6, 3)),
    }  # fmt: skip
    nodes = [
        helper.make_node("FusedMatMul", ["x", "w"], ["h"], domain="com.microsoft", alpha=0.5),
        helper.make_node("BiasGelu", ["h", "b"], ["a"], domain="com.microsoft"),
        helper.make_node("SkipLayerNormalization", ["a", "h", "gamma"], ["n"], domain="com.microsoft"),
        helper.make_node("QuickGelu", ["n"], ["q"], domain="com.microsoft"),
        helper.make_node("MatMul", ["q", "head"], ["logits"]),
    ]
    return helper.make_model(
        helper.make_graph(
            nodes, "optimised",
            [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["batch", 4])],
            [helper.make_tensor_value_info("logits", onnx.TensorProto.FLOAT, ["batch", 3])],
            [arrays.from_array(v.astype(np.float32), name) for name, v in weights.items()],
        ),
        opset_imports=[helper.make_opsetid("", 20), helper.make_opsetid("com.microsoft", 1)], ir_version=9,
    )  # fmt: skip


def test_a_file_that_onnxruntime_optimised_trains(rng: np.random.Generator) -> None:
    model = _model(rng)
    x, label = torch.tensor(rng.standard_normal((8, 4)), dtype=torch.float32), torch.arange(8) % 3
    description = {
        "inputs": [("x", ["batch", 4]), ("label", ["batch"])],
        "outputs": [("loss", [], True), ("logits", ["batch", 3])],
    }
    device = {"device": {"id": "cpu"}}
    trainer = ORTTrainer(model, description, optim.SGDConfig(lr=0.1), torch.nn.functional.cross_entropy, device)
    steps = [trainer.train_step(x, label) for _ in range(20)]
    losses, logits = [float(step[0]) for step in steps], steps[0][1]
    stock = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    np.testing.assert_allclose(logits.detach().numpy(), stock.run(None, {"x": x.numpy()})[0], rtol=2e-5, atol=2e-6)
    assert losses[-1] < 0.7 * losses[0]
