"""Sequences of any length, and dropout."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import nn

from ontrain.training.api import CheckpointState, Module
from ontrain.training.artifacts import LossType, generate_artifacts
from tests.training.artifacts.networks import perceptron


class Attentive(nn.Module):
    """Positions, a causal mask, attention of one head, scores for each token."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Parameter(torch.randn(11, 6)), nn.Parameter(torch.randn(20, 6))
        self.head = nn.Parameter(torch.randn(6, 4))

    def forward(self, ids):
        length = ids.shape[1]
        h = self.words[ids] + self.places[:length]
        scores = (h @ h.transpose(1, 2)).masked_fill(torch.ones(length, length).triu(1) > 0, -1e4)
        return (scores.softmax(-1) @ h @ self.head).transpose(1, 2)


def attentive():
    module, make = Attentive(), helper.make_node
    nodes = [
        make("Shape", ["ids"], ["shape"]),
        make("Gather", ["shape", "one"], ["length"]),
        make("Range", ["zero", "length", "one"], ["place"]),
        make("Gather", ["words", "ids"], ["w"]),
        make("Gather", ["places", "place"], ["p"]),
        make("Add", ["w", "p"], ["h"]),
        make("Transpose", ["h"], ["ht"], perm=[0, 2, 1]),
        make("MatMul", ["h", "ht"], ["scores"]),
        make("Unsqueeze", ["place", "first"], ["column"]),
        make("Unsqueeze", ["place", "second"], ["row"]),
        make("Greater", ["column", "row"], ["later"]),
        make("Where", ["later", "low", "scores"], ["masked"]),
        make("Softmax", ["masked"], ["probabilities"]),
        make("MatMul", ["probabilities", "h"], ["mixed"]),
        make("MatMul", ["mixed", "head"], ["tokens"]),
        make("Transpose", ["tokens"], ["logits"], perm=[0, 2, 1]),
    ]
    constants = {"zero": 0, "one": 1, "first": [0], "second": [1]}
    stored = [numpy_helper.from_array(np.array(value), name) for name, value in constants.items()]
    stored.append(numpy_helper.from_array(np.array(-1e4, np.float32), "low"))
    stored += [numpy_helper.from_array(t.detach().numpy().copy(), n) for n, t in module.named_parameters()]
    graph = helper.make_graph(
        nodes, "attentive",
        [helper.make_tensor_value_info("ids", TensorProto.INT64, ["batch", "length"])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, None)], stored,
    )  # fmt: skip
    return helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)]), module


def test_a_transformers_gradients_are_right_at_every_length(tmp_path, rng):
    model, module = attentive()
    generate_artifacts(model, loss=LossType.CrossEntropyLoss, artifact_directory=tmp_path)
    labels = onnx.load(tmp_path / "training_model.onnx").graph.input[1]
    assert [dim.dim_param for dim in labels.type.tensor_type.shape.dim] == ["batch", "length"]
    state = CheckpointState.load_checkpoint(tmp_path / "checkpoint")
    ours = Module(tmp_path / "training_model.onnx", state)
    for batch, length in ((1, 1), (3, 2), (2, 20)):
        ids, digits = rng.integers(0, 11, (batch, length)), rng.integers(0, 4, (batch, length))
        module.zero_grad()
        expected = nn.functional.cross_entropy(module(torch.from_numpy(ids)), torch.from_numpy(digits))
        expected.backward()
        ours.lazy_reset_grad()
        assert float(ours(ids, digits)) == pytest.approx(expected.item(), abs=1e-5)
        for name, parameter in module.named_parameters():
            np.testing.assert_allclose(state.parameters[name].grad, parameter.grad, atol=1e-5, err_msg=name)


def test_dropout_drops_in_training_alone_and_asks_for_no_input(tmp_path):
    model, _ = perceptron()
    model.graph.node[1].output[0] = "undropped"
    model.graph.node.insert(2, helper.make_node("Dropout", ["undropped", "ratio"], ["t"]))
    model.graph.initializer.append(numpy_helper.from_array(np.array(0.5, np.float32), "ratio"))
    generate_artifacts(model, loss=LossType.CrossEntropyLoss, artifact_directory=tmp_path)
    state = CheckpointState.load_checkpoint(tmp_path / "checkpoint")
    ours = Module(tmp_path / "training_model.onnx", state, tmp_path / "eval_model.onnx")
    assert ours.input_names() == ["x", "labels"]
    x, labels = np.ones((4, 12), np.float32), np.arange(4)
    assert len({float(ours(x, labels)) for _ in range(4)}) == 4
    # A unit that was dropped for all samples has no gradient: with one sample about half of the 16.
    ours.lazy_reset_grad()
    ours(x[:1], labels[:1])
    dead = (state.parameters["fc2.weight"].grad == 0).all(0).sum()
    assert 0 < dead < 16
    ours.eval()
    assert len({float(ours(x, labels)) for _ in range(4)}) == 1
