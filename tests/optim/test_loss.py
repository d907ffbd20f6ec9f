"""Losses against torch's, and how many labels a mean loss averages over."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
import torch
from onnx.reference import ReferenceEvaluator
from torch.nn import functional

from ontrain.errors import GraphError, OptionError
from ontrain.graph import Builder, Role, new_model, role_of, verify
from ontrain.optim import LOSSES, add_loss, loss_weight
from ontrain.optim.loss import bce_with_logits, l1, mse, nll, softmax_cross_entropy

IGNORED = np.array([1, -100, 0, 2, -100, 2], np.int64)
WEIGHTS = [0.5, 2.0, 3.0]


def model_with_output(shape, name="scores"):
    x = ir.Value(name="x", shape=ir.Shape(shape), type=ir.TensorType(ir.DataType.FLOAT))
    model = new_model([x], "forward")
    scores = Builder(model.graph).Mul(x, 2.0)
    scores.name = name
    model.graph.outputs.append(scores)
    return model


def run(model, feeds):
    verify(model)
    return ReferenceEvaluator(ir.to_proto(model)).run(None, feeds)


@pytest.mark.parametrize("options", [{}, {"ignore_index": -100}, {"ignore_index": -100, "weights": WEIGHTS}], ids=str)
def test_softmax_cross_entropy_is_torchs(rng, options):
    x = rng.normal(size=(6, 3)).astype(np.float32)
    labels = IGNORED if "ignore_index" in options else abs(IGNORED) % 3
    loss, scores = run(add_loss(model_with_output([6, 3]), "SoftmaxCrossEntropy", "scores", **options),
                       {"x": x, "label": labels})  # fmt: skip
    weight = torch.tensor(options["weights"]) if "weights" in options else None
    wanted = functional.cross_entropy(torch.tensor(scores), torch.tensor(labels), weight)
    np.testing.assert_allclose(loss, wanted, rtol=1e-6)


@pytest.mark.parametrize("kind", ["SoftmaxCrossEntropy", "NLL"])
def test_classes_may_come_last_as_language_models_give_them(rng, kind):
    x, labels = rng.normal(size=(2, 3, 5)).astype(np.float32), rng.integers(0, 5, (2, 3))
    model = add_loss(model_with_output([2, 3, 5]), kind, "scores", class_axis=-1)
    loss, scores = run(model, {"x": x, "label": labels})
    reference = functional.cross_entropy if kind == "SoftmaxCrossEntropy" else functional.nll_loss
    wanted = reference(torch.tensor(scores).reshape(-1, 5), torch.tensor(labels).reshape(-1))
    np.testing.assert_allclose(loss, wanted, rtol=1e-6)


@pytest.mark.parametrize(
    ("kind", "reference"),
    [
        ("MSE", functional.mse_loss),
        ("L1", functional.l1_loss),
        ("BCEWithLogits", functional.binary_cross_entropy_with_logits),
    ],
)
def test_elementwise_losses_are_torchs(rng, kind, reference):
    x, label = (4 * rng.normal(size=(4, 3))).astype(np.float32), rng.random((4, 3)).astype(np.float32)
    loss, scores = run(add_loss(model_with_output([4, 3]), kind, "scores"), {"x": x, "label": label})
    np.testing.assert_allclose(loss, reference(torch.tensor(scores), torch.tensor(label)), rtol=1e-6)


def test_bce_with_logits_neither_overflows_nor_vanishes(evaluate):
    x, y = np.array([-1e4, 1e4, 0, -90], np.float32), np.array([1, 1, 0.5, 0], np.float32)
    loss = evaluate(lambda op, v: bce_with_logits(op, v["x"], v["y"]), {"x": x, "y": y})
    np.testing.assert_allclose(loss, (1e4 + np.log(2)) / 4, rtol=1e-6)


def test_a_loss_comes_first_and_its_label_is_an_input_with_a_role():
    model = add_loss(model_with_output(["batch", 3]), "SoftmaxCrossEntropy", "scores", "target")
    assert [v.name for v in model.graph.outputs] == ["loss", "scores"]
    target = model.graph.inputs[-1]
    assert (target.name, role_of(target), target.dtype) == ("target", Role.LABEL, ir.DataType.INT64)
    assert str(target.shape) == "[batch]"


def test_a_label_that_the_model_has_is_used():
    model = add_loss(model_with_output([4]), "MSE", "scores", "x")
    assert [v.name for v in model.graph.inputs] == ["x"]


def test_unknown_losses_and_outputs_are_refused_with_the_nearest_names():
    with pytest.raises(OptionError, match="'SoftmaxCrossEntropy'"):
        add_loss(model_with_output([4, 3]), "CrossEntropy", "scores")
    with pytest.raises(OptionError, match="nearest: 'scores'"):
        add_loss(model_with_output([4, 3]), "MSE", "score")
    with pytest.raises(OptionError, match="class_axis"):
        add_loss(model_with_output([4, 3, 2]), "NLL", "scores", class_axis=2)
    with pytest.raises(GraphError, match="'loss' already"):
        add_loss(model_with_output([4, 3], "loss"), "MSE", "loss")
    assert set(LOSSES) == {"SoftmaxCrossEntropy", "NLL", "MSE", "L1", "BCEWithLogits"}


def weight_of(evaluate, build, feeds):
    weight = evaluate(lambda op, v: loss_weight(op, op.graph, build(op, v)), feeds)
    assert weight.shape == () and weight.dtype == np.float32
    return float(weight)


@pytest.mark.parametrize("function", [softmax_cross_entropy, nll])
@pytest.mark.parametrize(
    ("options", "labels", "wanted"),
    [
        ({}, [0, 1, 2, 2, 1, 0], 6),
        ({"ignore_index": -100}, IGNORED, 4),
        ({"ignore_index": 2}, [0, 1, 2, 2, 1, 0], 4),
        ({"ignore_index": -100}, [-100] * 6, 0),
        ({"weights": WEIGHTS}, [0, 1, 2, 2, 1, 0], 11),
        ({"weights": WEIGHTS, "ignore_index": -100}, IGNORED, 2 + 0.5 + 3 + 3),
    ],
)
def test_a_classification_loss_weighs_its_labels(evaluate, rng, function, options, labels, wanted):
    feeds = {"x": rng.normal(size=(6, 3)).astype(np.float32), "y": np.array(labels, np.int64)}
    assert weight_of(evaluate, lambda op, v: function(op, v["x"], v["y"], **options), feeds) == wanted


def test_a_mean_weighs_its_elements(evaluate):
    feeds = {"x": np.ones((4, 5), np.float32), "y": np.ones((4, 5), np.float32)}
    for function in (mse, l1, bce_with_logits):
        assert weight_of(evaluate, lambda op, v, f=function: f(op, v["x"], v["y"]), feeds) == 20


@pytest.mark.parametrize(
    "wrap",
    [
        lambda op, loss: op.Identity(loss),
        lambda op, loss: op.Squeeze(op.Reshape(loss, [1])),
        lambda op, loss: op.Cast(op.Cast(loss, to=ir.DataType.DOUBLE), to=ir.DataType.FLOAT),
        lambda op, loss: op.Div(op.Mul(0.5, loss), 4.0),
        lambda op, loss: op.ReduceSum(op.ReduceMean(op.Unsqueeze(loss, [0]), keepdims=0)),
    ],
    ids=["Identity", "Reshape", "Cast", "constant factor", "mean of one element"],
)
def test_a_mean_is_found_behind_what_keeps_it(evaluate, wrap):
    feeds = {"x": np.ones((4, 5), np.float32), "y": np.ones((4, 5), np.float32)}
    assert weight_of(evaluate, lambda op, v: wrap(op, mse(op, v["x"], v["y"])), feeds) == 20


@pytest.mark.parametrize(
    "build",
    [
        lambda op, v: op.ReduceSum(v["x"], keepdims=0),
        lambda op, v: op.Add(mse(op, v["x"], v["y"]), l1(op, v["x"], v["y"])),
        lambda op, v: op.Sqrt(mse(op, v["x"], v["y"])),
        lambda op, v: op.Div(1.0, mse(op, v["x"], v["y"])),
        lambda op, v: op.SoftmaxCrossEntropyLoss(v["x"], op.Constant(value_ints=[0, 1, 2, 3]), reduction="sum"),
    ],
    ids=["sum", "two losses", "root", "reciprocal", "summed cross entropy"],
)
def test_a_loss_that_is_no_mean_weighs_one(evaluate, build):
    feeds = {"x": np.ones((4, 5), np.float32), "y": np.full((4, 5), 2, np.float32)}
    assert weight_of(evaluate, build, feeds) == 1
