"""Levels of optimisation on ontrain's own provider: what they change, what they count, and the file that they write."""

from __future__ import annotations

import io
import warnings

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch import nn

import ontrain
from ontrain.passes import pipeline
from tests.inference.encoders import Encoder, batch, file_of

LEVELS = onnxruntime.GraphOptimizationLevel
CLOSE = {"rtol": 1e-4, "atol": 2e-5}
FUSED = {"FuseLayerNormalization", "FuseAttention", "FuseActivations", "EliminatePadding"}
"""Of those that work on an encoder."""


class Pictures(nn.Module):
    """Convolutions with batch normalisation, as residual networks have them."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.stem, self.norm = nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6)
        self.up, self.second = nn.ConvTranspose2d(6, 4, 2, stride=2, groups=2), nn.BatchNorm2d(4)
        for norm in (self.norm, self.second):
            for tensor in (norm.weight, norm.bias, norm.running_mean, norm.running_var):
                nn.init.uniform_(tensor, 0.5, 2.0)

    def forward(self, x):
        return self.second(self.up(torch.relu(self.norm(self.stem(x)))))


@pytest.fixture(scope="module")
def pictures() -> bytes:
    target = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            Pictures().eval(), (torch.randn(2, 3, 8, 8),), target, dynamo=False, input_names=["x"], output_names=["y"],
            opset_version=13, dynamic_axes={"x": {0: "n"}, "y": {0: "n"}}, training=torch.onnx.TrainingMode.PRESERVE,
            do_constant_folding=False,
        )  # fmt: skip
    assert [n.op_type for n in onnx.load(io.BytesIO(target.getvalue())).graph.node].count("BatchNormalization") == 2
    return target.getvalue()


@pytest.fixture(scope="module")
def sentences() -> bytes:
    return file_of(Encoder("mean"), ["embedding"], opset=14)


def opened(model: bytes, level=LEVELS.ORT_ENABLE_ALL, path="", **more) -> ontrain.InferenceSession:
    options = ontrain.SessionOptions()
    options.graph_optimization_level, options.optimized_model_filepath = level, str(path)
    return ontrain.InferenceSession(model, options, providers=["TorchExecutionProvider"], **more)


def stock(model, feeds):
    return onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"]).run(None, feeds)


class Normalised(nn.Module):
    """Root-mean-square normalisations as Llama (in half precision), T5 and Gemma have them."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.weights = nn.ParameterList(nn.Parameter(torch.randn(8)) for _ in range(4))

    def forward(self, x):
        llama, t5, gemma, last = self.weights
        normal = self.normal(x.half().float())
        x = (llama.half() * normal.half()).float()
        x = t5 * self.normal(x) + x
        x = self.normal(x) * (1.0 + gemma) + x
        return x / torch.sqrt((x * x).mean(-1, keepdim=True) + 1e-6) * last

    def normal(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)


@pytest.mark.parametrize("disabled", [(), ("FuseRMSNormalization",), ("SimplifiedLayerNormFusion",)])
def test_root_mean_square_normalisations_become_operators_without_changing_a_number(disabled, monkeypatch):
    """Eager PyTorch judges, call by call: onnxruntime computes products of half precision in single precision."""
    monkeypatch.setenv("ONTRAIN_JOIN", "0")
    module, target = Normalised(), io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            module, (torch.randn(2, 3, 8),), target, dynamo=False, input_names=["x"], output_names=["y"],
            opset_version=17, dynamic_axes={"x": {0: "n", 1: "l"}, "y": {0: "n", 1: "l"}},
        )  # fmt: skip
    x = 400 * np.random.default_rng(0).standard_normal((4, 5, 8)).astype(np.float32)
    session = opened(target.getvalue(), disabled_optimizers=list(disabled))
    with torch.no_grad():
        np.testing.assert_allclose(session.run(None, {"x": x})[0], module(torch.from_numpy(x)), rtol=2e-6, atol=2e-6)
    assert session.get_optimization_statistics().get("FuseRMSNormalization", 0) == (0 if disabled else 4)


X = {"x": np.random.default_rng(0).standard_normal((4, 3, 8, 8)).astype(np.float32)}


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("level", "fused"),
    [
        (LEVELS.ORT_DISABLE_ALL, set()), (LEVELS.ORT_ENABLE_BASIC, set()),
        (LEVELS.ORT_ENABLE_EXTENDED, FUSED), (LEVELS.ORT_ENABLE_ALL, FUSED),
    ],
    ids=["none", "basic", "extended", "all"],
)  # fmt: skip
def test_a_level_says_which_passes_run_and_no_number_changes(sentences, level, fused):
    feeds = batch()
    session = opened(sentences, level)
    np.testing.assert_allclose(session.run(None, feeds)[0], stock(sentences, feeds)[0], **CLOSE)
    counts = session.get_optimization_statistics()
    fusions = {graph_pass.name for stage in ("forward", "inference") for graph_pass in pipeline(stage)
               if graph_pass.level == 2}  # fmt: skip
    assert fused <= {*counts} and {*counts} & fusions >= fused
    if not fused:
        assert not {*counts} & fusions
    if level == LEVELS.ORT_DISABLE_ALL:
        assert not counts


def test_the_counts_are_those_of_the_models_parts(sentences, pictures):
    session = opened(sentences)
    session.run(None, batch())
    counts = session.get_optimization_statistics()
    # Two layers of an encoder, and the normalisation of the embeddings.
    assert (counts["FuseLayerNormalization"], counts["FuseAttention"], counts["FuseActivations"]) == (5, 2, 2)
    assert opened(pictures).get_optimization_statistics()["FoldBatchNormalization"] == 2


def test_folded_normalisations_change_no_number(pictures):
    np.testing.assert_allclose(opened(pictures).run(None, X)[0], stock(pictures, X)[0], **CLOSE)


@pytest.mark.parametrize("name", ["ConvBNFusion", "FoldBatchNormalization"])
def test_an_optimiser_is_left_out_by_its_name_here_or_in_onnxruntime(pictures, name):
    session = opened(pictures, disabled_optimizers=[name, "NchwcTransformer"])
    np.testing.assert_allclose(session.run(None, X)[0], stock(pictures, X)[0], **CLOSE)
    assert "FoldBatchNormalization" not in session.get_optimization_statistics()


@pytest.mark.parametrize("names", ["ConvBNFusion", "Nothing;FoldBatchNormalization"])
def test_an_entry_of_the_options_leaves_optimisers_out(pictures, names, recwarn):
    options = ontrain.SessionOptions()
    options.add_session_config_entry("optimization.disable_specified_optimizers", names)
    session = ontrain.InferenceSession(pictures, options, providers=["TorchExecutionProvider"])
    assert "FoldBatchNormalization" not in session.get_optimization_statistics()
    assert not [warning for warning in recwarn if "means nothing" in str(warning.message)]


def test_the_optimised_file_is_right_in_stock_onnxruntime(pictures, sentences, tmp_path):
    for name, model, feeds, gone in (
        ("pictures", pictures, X, "BatchNormalization"), ("sentences", sentences, batch(), "ReduceMean")
    ):  # fmt: skip
        path = tmp_path / f"{name}.onnx"
        opened(model, path=path)
        written = onnx.load(path)
        onnx.checker.check_model(written, full_check=True)
        operators = [node.op_type for node in written.graph.node]
        assert gone not in operators and len(operators) < len(onnx.load(io.BytesIO(model)).graph.node)
        for session in (opened(path.read_bytes()), onnxruntime.InferenceSession(path)):
            np.testing.assert_allclose(session.run(None, feeds)[0], stock(model, feeds)[0], **CLOSE)
    session = onnxruntime.InferenceSession(tmp_path / "sentences.onnx")
    assert [value.shape for value in session.get_inputs()] == [["batch", "length"]] * 3


def test_a_file_that_is_not_to_be_optimised_is_written_as_it_is(pictures, tmp_path):
    opened(pictures, LEVELS.ORT_DISABLE_ALL, tmp_path / "same.onnx")
    written = onnx.load(tmp_path / "same.onnx")
    assert [n.op_type for n in written.graph.node].count("BatchNormalization") == 2
    assert [entry.version for entry in written.opset_import] == [13]
    np.testing.assert_allclose(stock(str(tmp_path / "same.onnx"), X)[0], stock(pictures, X)[0], **CLOSE)


def test_so_is_one_that_runs_in_steps(tmp_path):
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17]>
        places (float[n] x) => (int64[1, found] y) { y = NonZero(x) }
    """).SerializeToString()
    session = opened(model, path=tmp_path / "steps.onnx")
    feeds = {"x": np.array([0.0, 2.0, 3.0], np.float32)}
    for results in (session.run(None, feeds), stock(str(tmp_path / "steps.onnx"), feeds)):
        np.testing.assert_array_equal(results[0], [[1, 2]])


def test_an_inner_value_is_there_although_the_file_is_optimised(pictures, tmp_path):
    session = opened(pictures, path=tmp_path / "optimised.onnx")
    graph = onnx.load(io.BytesIO(pictures)).graph
    inner = next(node.output[0] for node in graph.node if node.op_type == "BatchNormalization")
    before = (tmp_path / "optimised.onnx").read_bytes()
    value, y = session.run([inner, "y"], X)
    np.testing.assert_allclose(y, stock(pictures, X)[0], **CLOSE)
    assert value.shape == (4, 6, 6, 6) and (tmp_path / "optimised.onnx").read_bytes() == before


def test_onnxruntimes_own_providers_tell_no_counts(pictures):
    session = ontrain.InferenceSession(pictures, providers=["CPUExecutionProvider"])
    with pytest.raises(ontrain.OptionError, match="does not tell what its optimisers changed"):
        session.get_optimization_statistics()
