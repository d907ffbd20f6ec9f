"""Rows that nobody reads are not computed."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import torch
from torch import nn

import ontrain
from ontrain.passes.rows import section, unread
from ontrain.training.ortmodule import ORTModule
from tests.passes.rows.encoders import VOCABULARY, Classifier, Tagger, initialised
from tests.passes.rows.savings import ROWS, batch, layer, plan_of, trainer_of


def test_a_classifier_computes_first_tokens_alone_in_its_last_layer():
    feeds = {**batch([], [6, 3, 2]), "labels": torch.tensor([0, 1, 2])}
    _, rows = plan_of(Classifier(), feeds)
    real = {"q": 11, "k": 11, "v": 11, "o": 11, "up": 11, "down": 11}
    last = {"q": 3, "k": 11, "v": 11, "o": 3, "up": 3, "down": 3}
    assert rows == {**layer(0, **real), **layer(1, **last), "head": 3}


class Visible(Tagger):
    def forward(self, ids, mask, labels):
        hidden = self.encoder(ids, mask)
        logits = self.head(hidden)
        return nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten()), logits


def test_logits_that_the_user_sees_are_computed_whole():
    feeds = batch([1, 7], [6, 3, 2])
    outputs = [("logits", ["batch", "length", VOCABULARY])]
    plan, rows = plan_of(Visible(), feeds, outputs=outputs)
    assert rows["head"] == ROWS and rows["layers.0.up"] == ROWS
    (loss,) = [node for node in plan.model.graph if node.op_type == "SoftmaxCrossEntropyLoss"]
    assert loss.inputs[0].shape[0] == 2
    with torch.no_grad():
        expected = initialised(Visible())(**feeds)[1]
    torch.testing.assert_close(
        trainer_of(initialised(Visible()), feeds, outputs=outputs).train_step(**feeds)[1], expected
    )


def test_a_slice_behind_another_is_taken_with_it(rng):
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]>
        g (float[2, 16, 8] x, float[8, 8] a, float[8, 8] b) => (float[2, 1, 8] y)
        <int64[1] zero = {0}, int64[1] one = {1}, int64[1] five = {5}> {
            h = MatMul(x, a)
            early = Slice(h, zero, five, one)
            active = Relu(early)
            again = MatMul(active, b)
            y = Slice(again, zero, one, one)
        }""")
    feeds = {"x": rng.standard_normal((2, 16, 8)).astype(np.float32)}
    del model.graph.input[1:]
    for name in ("a", "b"):
        weight = rng.standard_normal((8, 8)).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(weight, name))
    (expected,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, feeds)
    session = ontrain.InferenceSession(model.SerializeToString(), providers=["TorchExecutionProvider"])
    np.testing.assert_allclose(session.run(None, feeds)[0], expected, rtol=1e-5, atol=1e-5)
    assert session.get_optimization_statistics()["EliminateUnreadRows"] > 1


class Stepwise(nn.Module):
    """A loop in Python over the places of its input, as transformers' Mamba and RWKV have."""

    def __init__(self, steps: int) -> None:
        super().__init__()
        self.steps, self.inner, self.recurrent = steps, nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x):
        inner, state, states = self.inner(x), torch.zeros(len(x), 8), []
        for step in range(self.steps):
            state = torch.tanh(inner[:, step] + self.recurrent(state))
            states.append(state)
        return torch.stack(states, 1).mean()


def test_slices_of_one_value_are_not_looked_at_one_by_one(monkeypatch):
    """Each look walks the whole graph. Of a value that several slices read all rows are read."""
    sections = []

    def counted(graph, reader):
        sections.append(reader)
        return section.find_section(graph, reader)

    monkeypatch.setattr(unread, "find_section", counted)
    loss = ORTModule(Stepwise(12))(torch.randn(3, 40, 8))
    loss.backward()
    assert len(sections) <= 1
