"""Files that leave every axis open, as exporters write them when they are told that all may vary."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import nn

from ontrain.errors import GraphError
from ontrain.training import onnxblock
from ontrain.training.api import CheckpointState, Module, Optimizer
from ontrain.training.artifacts import LossType, OptimType, generate_artifacts
from tests.training.artifacts.networks import FormerAdamW, batches, convolutional, perceptron

LOSSES = {
    LossType.CrossEntropyLoss: nn.functional.cross_entropy,
    LossType.MSELoss: nn.functional.mse_loss,
    LossType.L1Loss: nn.functional.l1_loss,
    LossType.BCEWithLogitsLoss: nn.functional.binary_cross_entropy_with_logits,
}


def all_open(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with a name of its own for each axis of each input and output."""
    for value in (*model.graph.input, *model.graph.output):
        for axis, dim in enumerate(value.type.tensor_type.shape.dim):
            dim.dim_param = f"{value.name}-0_dim{axis}"
    return model


def axes_of(model: onnx.ModelProto, name: str) -> list[int | str]:
    value = next(v for v in model.graph.input if v.name == name)
    return [dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim]


def file_of(nodes, inputs, outputs, initializers):
    """A file all of whose axes are open; inputs and outputs are given by name and rank."""
    values = [
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["?"] * rank) for name, rank in group.items()]
        for group in (inputs, outputs)
    ]
    weights = [numpy_helper.from_array(np.asarray(array), name) for name, array in initializers.items()]
    graph = helper.make_graph(nodes, "net", *values, weights)
    return all_open(helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)]))


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.name)
def test_a_file_whose_axes_are_all_open_trains_as_pytorch_does(loss, tmp_path, rng):
    model, module = perceptron()
    generate_artifacts(all_open(model), loss=loss, optimizer=OptimType.AdamW, artifact_directory=tmp_path)
    state = CheckpointState.load_checkpoint(tmp_path / "checkpoint")
    ours = Module(tmp_path / "training_model.onnx", state, tmp_path / "eval_model.onnx")
    optimizer, theirs = Optimizer(tmp_path / "optimizer_model.onnx", ours), FormerAdamW(module.parameters(), 0.001)
    for x, labels in batches(rng, [12], 4):
        target = labels if loss is LossType.CrossEntropyLoss else rng.random([len(x), 5], np.float32)
        theirs.zero_grad()
        expected = LOSSES[loss](module(torch.from_numpy(x)), torch.from_numpy(target))
        expected.backward()
        ours.train()
        np.testing.assert_allclose(ours(x, target), expected.item(), rtol=1e-5)
        for name, parameter in module.named_parameters():
            np.testing.assert_allclose(state.parameters[name].grad, parameter.grad, atol=1e-6, err_msg=name)
        ours.eval()
        np.testing.assert_allclose(ours(x, target), expected.item(), rtol=1e-5)
        optimizer.step()
        theirs.step()
        ours.lazy_reset_grad()


def test_axes_that_weights_fix_are_numbers_and_the_target_shares_the_batch(tmp_path):
    generate_artifacts(all_open(perceptron()[0]), loss=LossType.MSELoss, artifact_directory=tmp_path)
    training = onnx.load(tmp_path / "training_model.onnx")
    assert axes_of(training, "x") == ["x-0_dim0", 12]
    assert axes_of(training, "target") == ["x-0_dim0", 5]


def test_channels_are_fixed_by_a_convolution(tmp_path, rng):
    model, module = convolutional()
    dims = all_open(model).graph.input[0].type.tensor_type.shape.dim
    dims[2].dim_value, dims[3].dim_value = 8, 8
    generate_artifacts(model, loss=LossType.CrossEntropyLoss, artifact_directory=tmp_path)
    assert axes_of(onnx.load(tmp_path / "training_model.onnx"), "x") == ["x-0_dim0", 1, 8, 8]
    state = CheckpointState.load_checkpoint(tmp_path / "checkpoint")
    ours = Module(tmp_path / "training_model.onnx", state)
    x, labels = rng.standard_normal((3, 1, 8, 8), np.float32), rng.integers(0, 5, 3)
    expected = nn.functional.cross_entropy(module(torch.from_numpy(x)), torch.from_numpy(labels))
    expected.backward()
    np.testing.assert_allclose(ours(x, labels), expected.item(), rtol=1e-5)
    for name, parameter in module.named_parameters():
        np.testing.assert_allclose(state.parameters[name].grad, parameter.grad, atol=1e-5, err_msg=name)


def test_inputs_that_meet_share_their_axes(tmp_path, rng):
    # Two branches, each with weights of its own, meet in a sum, and with a mask behind a Reshape by a computed shape.
    a, b = rng.standard_normal((6, 4), np.float32), rng.standard_normal((3, 4), np.float32)
    nodes = [
        helper.make_node("MatMul", ["x", "a"], ["xa"]),
        helper.make_node("MatMul", ["y", "b"], ["yb"]),
        helper.make_node("Add", ["xa", "yb"], ["sum"]),
        helper.make_node("Shape", ["sum"], ["shape"]),
        helper.make_node("Reshape", ["sum", "shape"], ["same"]),
        helper.make_node("Mul", ["same", "mask"], ["masked"]),
        helper.make_node("ReduceMean", ["masked"], ["loss"], keepdims=0),
    ]
    model = file_of(nodes, {"x": 3, "y": 3, "mask": 3}, {"loss": 0}, {"a": a, "b": b})
    generate_artifacts(model, artifact_directory=tmp_path)
    training = onnx.load(tmp_path / "training_model.onnx")
    first = ["x-0_dim0", "x-0_dim1"]
    assert [axes_of(training, name) for name in ("x", "y", "mask")] == [[*first, 6], [*first, 3], [*first, 4]]
    state = CheckpointState.load_checkpoint(tmp_path / "checkpoint")
    ours = Module(tmp_path / "training_model.onnx", state)
    x, y, mask = (rng.standard_normal((2, 5, n), np.float32) for n in (6, 3, 4))
    ours(x, y, mask)
    np.testing.assert_allclose(state.parameters["a"].grad, np.einsum("nlk,nlm->km", x, mask) / mask.size, atol=1e-5)


def test_a_recurrent_layers_width_and_batch_come_from_its_weights_and_state(tmp_path, rng):
    layer = nn.LSTM(6, 4)
    named = {name: tensor.detach().numpy() for name, tensor in layer.named_parameters()}

    def gates(name):  # ONNX orders them i, o, f, c; PyTorch i, f, c, o
        i, f, c, o = np.split(named[name], 4)
        return np.concatenate([i, o, f, c])

    weights = {
        "w": gates("weight_ih_l0")[None],
        "r": gates("weight_hh_l0")[None],
        "b": np.concatenate([gates("bias_ih_l0"), gates("bias_hh_l0")])[None],
    }
    nodes = [
        helper.make_node("LSTM", ["x", "w", "r", "b", "", "h0", "c0"], ["y"], hidden_size=4),
        helper.make_node("ReduceMean", ["y"], ["loss"], keepdims=0),
    ]
    x, h0, c0 = (rng.standard_normal(shape, np.float32) for shape in [(5, 2, 6), (1, 2, 4), (1, 2, 4)])
    model = file_of(nodes, {"x": 3, "h0": 3, "c0": 3}, {"loss": 0}, weights)
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 5  # a loop's length is known to a portable graph
    generate_artifacts(model, requires_grad=["w", "r", "b"], artifact_directory=tmp_path)
    assert axes_of(onnx.load(tmp_path / "training_model.onnx"), "x") == [5, "x-0_dim1", 6]
    state = CheckpointState.load_checkpoint(tmp_path / "checkpoint")
    ours = Module(tmp_path / "training_model.onnx", state)
    expected = layer(torch.from_numpy(x), (torch.from_numpy(h0), torch.from_numpy(c0)))[0].mean()
    np.testing.assert_allclose(ours(x, h0, c0), expected.item(), rtol=1e-5)


def test_what_no_weight_determines_is_refused_with_the_axis_to_fix(tmp_path):
    # Height times width has to be 35, which many sizes are.
    nodes = [helper.make_node("Flatten", ["x"], ["f"]), helper.make_node("MatMul", ["f", "w"], ["logits"])]
    model = file_of(nodes, {"x": 4}, {"logits": 2}, {"w": np.ones((35, 5), np.float32)})
    with pytest.raises(GraphError, match=r"MatMul") as caught:
        generate_artifacts(model, loss=LossType.CrossEntropyLoss, artifact_directory=tmp_path)
    assert "x-0_dim2" in str(caught.value) and "dim_value" in str(caught.value)
    for axis, size in enumerate([1, 5, 7], start=1):
        model.graph.input[0].type.tensor_type.shape.dim[axis].dim_value = size
    generate_artifacts(model, loss=LossType.CrossEntropyLoss, artifact_directory=tmp_path)


class _Weighted(onnxblock.TrainingBlock):
    """Cross entropy of two outputs, one with three times the weight of the other."""

    def build(self, first, second):
        terms = [onnxblock.loss.CrossEntropyLoss()(name, f"labels_{i}") for i, name in enumerate((first, second))]
        tripled = onnxblock.blocks.Mul()(onnxblock.blocks.Constant(3.0)(), terms[0])
        return onnxblock.blocks.Add()(tripled, terms[1])


def test_blocks_on_open_axes_give_the_gradients_of_two_losses(rng):
    weights = {name: rng.standard_normal((6, 4), np.float32) for name in ("a", "b")}
    nodes = [helper.make_node("MatMul", [x, w], [f"{w}_out"]) for x, w in (("x", "a"), ("y", "b"))]
    block = _Weighted()
    with onnxblock.base(file_of(nodes, {"x": 2, "y": 2}, {"a_out": 2, "b_out": 2}, weights)):
        block("a_out", "b_out")
    assert [tensor.name for tensor in block.parameters()[0]] == ["a", "b"]
    training, _ = block.to_model_proto()
    x, y = (rng.standard_normal((n, 6), np.float32) for n in (3, 8))
    labels = [rng.integers(0, 4, n) for n in (3, 8)]
    session = onnxruntime.InferenceSession(training.SerializeToString(), providers=["CPUExecutionProvider"])
    feeds = {"x": x, "y": y, "labels_0": labels[0], "labels_1": labels[1], **weights}
    loss, *grads = session.run([training.graph.output[0].name, "a_grad", "b_grad"], feeds)
    tensors = {name: torch.tensor(array, requires_grad=True) for name, array in weights.items()}
    entropies = [
        nn.functional.cross_entropy(torch.from_numpy(array) @ tensors[name], torch.from_numpy(label))
        for array, name, label in ((x, "a", labels[0]), (y, "b", labels[1]))
    ]
    expected = 3 * entropies[0] + entropies[1]
    expected.backward()
    np.testing.assert_allclose(loss, expected.item(), rtol=1e-5)
    for grad, tensor in zip(grads, tensors.values(), strict=True):
        np.testing.assert_allclose(grad, tensor.grad, atol=1e-5)
