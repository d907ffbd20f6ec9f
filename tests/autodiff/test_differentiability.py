"""Which operators have a gradient, of what kind, and that the ones said to be flat are flat."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch

from ontrain.autodiff import differentiability
from ontrain.errors import GraphError
from ontrain.functions import adopted, composites
from ontrain.graph import DOMAIN, rebuild
from ontrain.operators import OPERATORS
from ontrain.providers import get_provider
from tests.autodiff.graphs import SampleGraph
from tests.autodiff.samples import CHANCE, SAMPLES, ZEROS, Sample
from tests.autodiff.samples.sample import normal, sample

STANDARD = sorted({s.name for s in onnx.defs.get_all_schemas() if not s.domain and not s.deprecated})
_NOT_OF_NUMBERS = {
    "BitCast", "ConcatFromSequence", "ImageDecoder", "Optional", "OptionalGetElement", "OptionalHasElement",
    "RegexFullMatch", "SequenceAt", "SequenceConstruct", "SequenceEmpty", "SequenceErase", "SequenceInsert",
    "SequenceLength", "SequenceMap", "SplitToSequence", "StringConcat", "StringNormalizer", "StringSplit",
    "TfIdfVectorizer", "Unique",
}  # fmt: skip
# Constant has no inputs; control flow and recurrent networks have tests of their own.
_ELSEWHERE = {"Constant", "If", "Loop", "Scan", "LSTM", "GRU", "RNN"}

_ONLY_RUN = {
    key for key in adopted if key[0] == "ai.onnx.preview.training" or OPERATORS[key].no_gradient
} | {
    ("com.microsoft", name)
    for name in (
        "CausalConvWithState", "CropAndResize", "DecoderMaskedMultiHeadAttention", "DequantizeLinear",
        "DynamicQuantizeLSTM", "DynamicQuantizeMatMul", "ExpandDims", "GatherBlockQuantized", "GatherND", "GridSample",
        "GroupQueryAttention", "LinearAttention", "MatMulBnb4", "MatMulIntegerToFloat", "NhwcMaxPool", "Pad",
        "QAttention", "QEmbedLayerNormalization", "QGemm", "QLinearAdd", "QLinearAveragePool", "QLinearConcat",
        "QLinearConv", "QLinearGlobalAveragePool", "QLinearLeakyRelu", "QLinearMul", "QLinearSigmoid",
        "QLinearSoftmax", "QLinearWhere", "QMoE", "QuantizeLinear", "Range", "SparseAttention", "Trilu",
    )
}  # fmt: skip
"""What files are not trained with, and what has bodies of operators that have samples: compared with onnxruntime's."""


def test_every_operator_of_the_standard_that_maps_numbers_to_numbers_has_a_gradient() -> None:
    without = {name for name in STANDARD if not differentiability(("", name)).available}
    assert without == _NOT_OF_NUMBERS


def test_every_kind_that_has_a_gradient_has_a_sample() -> None:
    sampled = {(s.domain, s.op_type) for s in (*SAMPLES, *ZEROS, *CHANCE)}
    kinds = {("", name) for name in STANDARD if differentiability(("", name)).available}
    kinds -= {("", name) for name in _ELSEWHERE}
    assert kinds | set(adopted) <= sampled | {("", name) for name in _ELSEWHERE} | _ONLY_RUN
    assert len({operator for operator in sampled if differentiability(operator).available}) >= 180


def test_every_reason_says_something() -> None:
    for name in (*STANDARD, "NoSuchOperator"):
        answer = differentiability(("", name))
        assert answer.reason and answer.kind in ("rule", "body", "zero", "none")
    assert "strings" in differentiability(("", "StringSplit")).reason
    assert "NoSuchOperator" in differentiability(("theirs", "NoSuchOperator")).reason
    assert differentiability(("ai.onnx.ml", "TreeEnsemble")).kind == "zero"
    assert "fitted" in differentiability(("ai.onnx.ml", "SVMClassifier")).reason
    assert differentiability(("com.microsoft", "FastGelu")).kind == "body"
    assert all(differentiability((DOMAIN, name)).available for name in composites)


def test_a_form_beyond_its_rule_is_seen_on_the_node() -> None:
    pads = ir.Value(name="pads", const_value=ir.tensor(np.array([-1, 0, 0, 1])))
    reflected = ir.Node("", "Pad", [ir.Value(name="x"), pads], [ir.AttrString("mode", "reflect")], num_outputs=1)
    answer = differentiability(reflected)
    assert answer.kind == "none" and "negative" in answer.reason
    assert differentiability(ir.Node("", "Pad", [ir.Value(name="x"), pads], num_outputs=1)).kind == "rule"


def _ids(samples: list[Sample]) -> list[str]:
    return [f"{s.op_type}-{i}" for i, s in enumerate(samples)]


@pytest.mark.parametrize("case", ZEROS, ids=_ids(ZEROS))
def test_a_flat_operator_takes_no_gradient_and_is_flat(case: Sample, rng: np.random.Generator) -> None:
    assert differentiability((case.domain, case.op_type)).kind == "zero"
    arrays: list[Any] = case.draw(rng)
    graph = SampleGraph(case, arrays)
    if graph.node is None:  # made of constants or of a shape, and so a constant when the plan is made
        expected = case.twin(*(torch.tensor(a) for a in arrays)).numpy()
        np.testing.assert_allclose(graph.value, expected, rtol=1e-12, atol=1e-15)
        return
    run = graph.evaluator([graph.node.outputs[0]])
    (y,) = run()
    if case.twin is not None:
        expected = case.twin(*(torch.tensor(a) for a in arrays)).numpy()
        np.testing.assert_allclose(y, expected, rtol=1e-6, atol=1e-7)
    floats = [v for v in graph.y if v.dtype.is_floating_point()]
    assert all(g is None for g in graph.gradient(floats, graph.seeds(floats, rng, "dy"), graph.wrt))
    for x in graph.wrt:
        (moved,) = run(**{x.name: graph.feeds[x.name] + graph.feeds[x.name].dtype.type(1e-4)})
        np.testing.assert_array_equal(moved, y)


_PLANNED = [s for s in ZEROS if s.seeded]


@pytest.mark.parametrize("case", [*_PLANNED, *CHANCE], ids=_ids([*_PLANNED, *CHANCE]))
def test_the_torch_provider_runs_it(case: Sample, rng: np.random.Generator) -> None:
    arrays: list[Any] = case.draw(rng)
    fed = tuple(i for i, a in enumerate(arrays) if a.dtype.kind != "f" and case.op_type not in _BY_VALUE)
    graph = SampleGraph(Sample(**{**vars(case), "fed": fed}), arrays)
    (y,) = graph.y
    graph.model.graph.outputs.append(y if y.producer() is not None else graph.op.Identity(y))
    provider = get_provider("TorchExecutionProvider")
    executable = provider.compile(rebuild(graph.model), provider.create_state([]))
    results = executable.run({name: torch.as_tensor(array) for name, array in graph.feeds.items()})
    (got,) = results.values()
    if case.twin is not None:
        expected = case.twin(*(torch.tensor(a) for a in arrays)).numpy()
        np.testing.assert_allclose(np.asarray(got), expected, rtol=1e-6, atol=1e-7)
    assert tuple(got.shape) == tuple(y.shape)


# Their inputs say what shape the result has, and are constants in every plan.
_BY_VALUE = frozenset({"BlackmanWindow", "ConstantOfShape", "HammingWindow", "HannWindow", "Range"})


# Draws whose derivative by their parameters is defined: Figurnov et al., Implicit Reparameterization Gradients, 2018.
_IMPLICIT = frozenset({"StandardGamma", "Dirichlet"})


def test_what_chance_makes_takes_no_gradient() -> None:
    for case in CHANCE:
        kind = "rule" if case.op_type in _IMPLICIT else "zero"
        assert differentiability((case.domain, case.op_type)).kind == kind, case.op_type


def test_a_body_that_needs_a_constant_says_so(rng: np.random.Generator) -> None:
    case = sample("RoiAlign", normal(1, 2, 5, 6), np.array([[0.0, 0.0, 3.0, 2.0]]), np.array([0]), twin=torch.clone)
    graph = SampleGraph(case, case.draw(rng))
    with pytest.raises(GraphError, match=r"(?s)RoiAlign.*sampling_ratio.*way out"):
        graph.gradient(graph.y, graph.seeds(graph.y, rng, "dy"), graph.wrt)
    answer = differentiability(graph.node)
    assert answer.kind == "none" and "sampling_ratio" in answer.reason
    assert differentiability(("", "RoiAlign")).kind == "body"
