"""Linear models of classical files go on training from their coefficients."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper

import ontrain
from ontrain.capture import load_onnx
from ontrain.errors import GraphError
from ontrain.functions import inline_all
from ontrain.training import ORTTrainer, optim

ML = "ai.onnx.ml"
CPU = {"device": {"id": "cpu"}}
COEFFICIENTS = np.float32([[0.5, -0.2, 0.1], [0.3, 0.8, -0.4], [-0.6, 0.1, 0.2]])
INTERCEPTS = np.float32([0.1, -0.2, 0.3])


def node(op_type, inputs, outputs, **attributes):
    return helper.make_node(op_type, inputs, outputs, name=op_type, domain=ML, **attributes)


def tensor(name, kind=TensorProto.FLOAT, shape=None):
    return helper.make_tensor_value_info(name, kind, shape)


def model_of(nodes, outputs):
    graph = helper.make_graph(nodes, "classical", [tensor("X", shape=["n", 3])], outputs)
    sets = [helper.make_opsetid("", 17), helper.make_opsetid(ML, 3)]
    return helper.make_model(graph, opset_imports=sets, ir_version=8)


def classifier():
    """A logistic regression as skl2onnx writes it: labels that are strings, and a map for each row."""
    maps = onnx.ValueInfoProto(name="output_probability")
    kind = maps.type.sequence_type.elem_type.map_type
    kind.key_type, kind.value_type.tensor_type.elem_type = TensorProto.STRING, TensorProto.FLOAT
    names = ["ant", "bee", "cow"]
    nodes = [
        node("LinearClassifier", ["X"], ["label", "scores"], coefficients=COEFFICIENTS.reshape(-1).tolist(),
             intercepts=INTERCEPTS.tolist(), classlabels_strings=names, post_transform="SOFTMAX"),
        helper.make_node("Identity", ["label"], ["output_label"]),
        node("Normalizer", ["scores"], ["probabilities"], norm="L1"),
        node("ZipMap", ["probabilities"], ["output_probability"], classlabels_strings=names),
    ]  # fmt: skip
    return model_of(nodes, [tensor("output_label", TensorProto.STRING, ["n"]), maps])


def batch(rng):
    return rng.standard_normal((32, 3)).astype(np.float32), rng.integers(3, size=32)


def test_a_logistic_regression_goes_on_training_as_its_twin_in_torch(rng, tmp_path):
    description = {
        "inputs": [("X", ["batch", 3]), ("label", ["batch"])],
        "outputs": [("loss", [], True), ("output_probability", ["batch", 3])],
    }
    trainer = ORTTrainer(
        classifier(), description, optim.SGDConfig(lr=0.5),
        lambda p, label: torch.nn.functional.nll_loss(p.log(), label), CPU,
    )  # fmt: skip
    weight, bias = (torch.tensor(array, requires_grad=True) for array in (COEFFICIENTS, INTERCEPTS))
    twin = torch.optim.SGD([weight, bias], lr=0.5)
    x, label = batch(rng)
    for _ in range(5):
        loss = torch.nn.functional.cross_entropy(torch.tensor(x) @ weight.T + bias, torch.tensor(label))
        twin.zero_grad()
        loss.backward()
        twin.step()
        np.testing.assert_allclose(float(trainer.train_step(x, label)[0]), loss.item(), rtol=1e-5)
    trainer.save_as_onnx(str(tmp_path / "trained.onnx"))
    session = ontrain.InferenceSession(str(tmp_path / "trained.onnx"))
    expected = (torch.tensor(x) @ weight.T + bias).softmax(1).detach().numpy()
    np.testing.assert_allclose(session.run(["output_probability"], {"X": x})[0], expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("targets", [1, 3])
def test_a_linear_regression_goes_on_training(rng, targets):
    linear = node("LinearRegressor", ["X"], ["y"], coefficients=COEFFICIENTS[:targets].reshape(-1).tolist(),
                  targets=targets)  # fmt: skip
    description = {
        "inputs": [("X", ["batch", 3]), ("target", ["batch", targets])],
        "outputs": [("loss", [], True), ("y", ["batch", targets])],
    }
    model = model_of([linear], [tensor("y", shape=["n", targets])])
    trainer = ORTTrainer(model, description, optim.SGDConfig(lr=0.5), "MSELoss", CPU)
    x, target = rng.standard_normal((32, 3)).astype(np.float32), rng.standard_normal((32, targets)).astype(np.float32)
    for _ in range(200):
        trainer.train_step(x, target)
    design = np.concatenate([x, np.ones((32, 1), np.float32)], 1)
    solution = np.linalg.lstsq(design, target, rcond=None)[0].T
    weights = trainer.state_dict()["model"]["full_precision"]
    np.testing.assert_allclose(weights["LinearRegressor.coefficients"], solution[:, :-1], rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(weights["LinearRegressor.intercepts"], solution[:, -1], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("targets", [0, 2, -1])
def test_coefficients_that_do_not_fit_are_refused(targets):
    linear = node("LinearRegressor", ["X"], ["y"], coefficients=[1.0, 2.0, 3.0], targets=targets)
    with pytest.raises(GraphError, match="LinearRegressor"):
        load = load_onnx(model_of([linear], [tensor("y", shape=["n", 1])]))
        inline_all(load.model)


def test_what_a_classical_file_trains_has_names():
    loaded = load_onnx(classifier())
    assert loaded.trainable == ["LinearClassifier.coefficients", "LinearClassifier.intercepts"]
    assert loaded.output_names == ["output_probability"]
    with pytest.raises(GraphError, match="is of type"):
        load_onnx(helper.make_model(helper.make_graph(
            [node("ZipMap", ["X"], ["y"], classlabels_int64s=[1])], "maps", [onnx.ValueInfoProto(name="X")],
            [onnx.ValueInfoProto(name="y")]), opset_imports=[helper.make_opsetid(ML, 1)]))  # fmt: skip
