"""Blocks put models together as onnxruntime.training.onnxblock's do; each is compared with numpy or PyTorch."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import TensorProto, helper
from torch import nn

from ontrain.errors import CheckpointError, OntrainError
from ontrain.training import onnxblock
from ontrain.training.api import CheckpointState, Module
from ontrain.training.artifacts import generate_artifacts
from tests.training.artifacts.networks import perceptron


def identity():
    """x [batch, 4] as it is."""
    graph = helper.make_graph(
        [helper.make_node("Identity", ["x"], ["y"])], "identity",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 4])],
    )  # fmt: skip
    return helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])


def result_of(build, *arrays):
    """What a block makes of the value "y" and further inputs."""

    class Whole(onnxblock.ForwardBlock):
        def build(self, name):
            return build(name)

    whole = Whole()
    with onnxblock.base(identity()):
        whole("y")
    session = onnxruntime.InferenceSession(whole.to_model_proto().SerializeToString())
    return session.run(None, dict(zip([one.name for one in session.get_inputs()], arrays, strict=True)))[0]


BLOCKS = {
    "Add": (lambda y: onnxblock.blocks.Add()(y, y), lambda x: x + x),
    "Sub": (lambda y: onnxblock.blocks.Sub()(y, onnxblock.blocks.Constant(2.0)()), lambda x: x - 2),
    "Mul": (lambda y: onnxblock.blocks.Mul()(y, y), lambda x: x * x),
    "Div": (lambda y: onnxblock.blocks.Div()(y, onnxblock.blocks.Constant(4.0)()), lambda x: x / 4),
    "Pow": (lambda y: onnxblock.blocks.Pow(3.0)(y), lambda x: x**3),
    "Sigmoid": (lambda y: onnxblock.blocks.Sigmoid()(y), lambda x: 1 / (1 + np.exp(-x))),
    "Log of Abs": (lambda y: onnxblock.blocks.Log()(onnxblock.blocks.Abs()(y)), lambda x: np.log(abs(x))),
    "Neg": (lambda y: onnxblock.blocks.Neg()(y), lambda x: -x),
    "ReduceMean": (lambda y: onnxblock.blocks.ReduceMean()(y), lambda x: x.mean(keepdims=True)),
    "ReduceSum": (lambda y: onnxblock.blocks.ReduceSum(keepdims=False)(y), lambda x: x.sum()),
    "ReduceAllL2": (lambda y: onnxblock.blocks.ReduceAllL2()(y, y), lambda x: np.sqrt(2 * (x * x).sum())),
    "Clip": (lambda y: onnxblock.blocks.Clip(clip_max=0.5)(y), lambda x: np.minimum(x, 0.5)),
    "Clip on both sides": (lambda y: onnxblock.blocks.Clip(-0.25, 0.5)(y), lambda x: np.clip(x, -0.25, 0.5)),
    "Cast": (lambda y: onnxblock.blocks.Cast(TensorProto.DOUBLE)(y), lambda x: x.astype(np.float64)),
}  # fmt: skip


@pytest.mark.parametrize("name", BLOCKS)
def test_a_block_computes_what_its_name_says(name, rng):
    build, reference = BLOCKS[name]
    x = rng.standard_normal((3, 4), np.float32)
    made, expected = result_of(build, x), reference(x)
    np.testing.assert_allclose(made, expected, rtol=2e-6, atol=1e-6)
    assert made.dtype == expected.dtype


LOSSES = {
    "sum of squares": (onnxblock.loss.MSELoss("sum"), nn.MSELoss(reduction="sum")),
    "plain absolute": (onnxblock.loss.L1Loss("none"), nn.L1Loss(reduction="none")),
    "weighted binary": (
        onnxblock.loss.BCEWithLogitsLoss(weight=np.arange(1, 5), pos_weight=np.array([2.0])),
        nn.BCEWithLogitsLoss(weight=torch.arange(1.0, 5.0), pos_weight=torch.tensor([2.0])),
    ),
    "weighted classes": (
        onnxblock.loss.CrossEntropyLoss(weight=np.arange(1, 5), ignore_index=2),
        nn.CrossEntropyLoss(weight=torch.arange(1.0, 5.0), ignore_index=2),
    ),
}


@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_with_settings_is_pytorchs(name, rng):
    block, reference = LOSSES[name]
    x = rng.standard_normal((6, 4), np.float32) * 30
    target = np.arange(6) % 4 if "classes" in name else rng.random((6, 4), np.float32)
    expected = reference(torch.from_numpy(x), torch.from_numpy(target))
    np.testing.assert_allclose(result_of(block, x, target), expected.numpy(), rtol=2e-6)


class Distilled(onnxblock.Block):
    """A loss of one's own: cross entropy, and the squared distance of the features to those of a teacher."""

    def __init__(self):
        super().__init__()
        self.entropy, self.distance = onnxblock.loss.CrossEntropyLoss(), onnxblock.loss.MSELoss()
        self.add = onnxblock.blocks.Add()

    def build(self, logits, features):
        return self.add(self.entropy(logits), self.distance(features, "teacher"))


def with_features():
    model, module = perceptron()
    model.graph.output.append(helper.make_tensor_value_info("t", TensorProto.FLOAT, None))
    return model, module


def test_a_users_block_is_a_loss_with_two_inputs_of_its_own(tmp_path, rng):
    model, module = with_features()
    generate_artifacts(model, loss=Distilled(), artifact_directory=tmp_path)
    state = CheckpointState.load_checkpoint(tmp_path / "checkpoint")
    ours = Module(tmp_path / "training_model.onnx", state)
    assert ours.input_names() == ["x", "labels", "teacher"]
    x, labels, teacher = (
        rng.standard_normal((7, 12), np.float32),
        rng.integers(0, 5, 7),
        rng.random((7, 16), np.float32),
    )
    features = module.fc1(torch.from_numpy(x)).tanh()
    loss = nn.functional.cross_entropy(module.fc2(features), torch.from_numpy(labels))
    loss = loss + nn.functional.mse_loss(features, torch.from_numpy(teacher))
    loss.backward()
    assert float(ours(x, labels, teacher)) == pytest.approx(loss.item(), abs=1e-6)
    for name, parameter in module.named_parameters():
        np.testing.assert_allclose(state.parameters[name].grad, parameter.grad, atol=1e-6, err_msg=name)


def test_a_block_that_adds_its_own_nodes_to_the_base_is_trained(tmp_path, rng):
    class Own(onnxblock.Block):
        def build(self, logits):
            self.base.graph.node.append(helper.make_node("Softplus", [logits], ["positive"]))
            return onnxblock.blocks.ReduceSum(keepdims=False)("positive")

    model, module = perceptron()
    generate_artifacts(model, loss=Own(), artifact_directory=tmp_path)
    x = rng.standard_normal((3, 12), np.float32)
    state = CheckpointState.load_checkpoint(tmp_path / "checkpoint")
    loss = Module(tmp_path / "training_model.onnx", state)(x)
    expected = nn.functional.softplus(module(torch.from_numpy(x))).sum()
    assert float(loss) == pytest.approx(expected.item(), rel=1e-6)


def test_a_new_head_is_stacked_on_a_model_and_trained_alone(tmp_path, rng):
    class Head(onnxblock.TrainingBlock):
        def __init__(self):
            super().__init__()
            self.linear, self.loss = onnxblock.blocks.Linear(16, 3), onnxblock.loss.CrossEntropyLoss()

        def build(self, features):
            scores = self.linear(features)
            self.requires_grad(self.linear.weight_name)
            self.requires_grad(self.linear.bias_name)
            return self.loss(scores), scores

    head = Head()
    with onnxblock.base(perceptron()[0]):
        head("t")
    training, evaluation = head.to_model_proto()
    trained, others = head.parameters()
    assert [one.name for one in trained] == ["linear.weight", "linear.bias"] and others == []
    assert [v.name for v in training.graph.output] == ["loss", "gemm_output", "linear.weight_grad", "linear.bias_grad"]
    assert [v.name for v in evaluation.graph.input] == ["x", "labels", "linear.weight", "linear.bias"]
    onnxblock.save_checkpoint(head.parameters(), tmp_path / "checkpoint")
    update = onnxblock.optim.SGD(clip_grad=onnxblock.optim.ClipGradNorm(1.0))
    with onnxblock.empty_base() as accessor:
        outputs = update(head.parameters())
    assert outputs == ["linear.weight.next", "linear.bias.next"]
    assert [v.name for v in accessor.model.graph.output] == outputs
    state = CheckpointState.load_checkpoint(tmp_path / "checkpoint")
    assert abs(state.parameters["linear.weight"].data).max() <= 0.25  # 1/√16


def test_clipping_on_names_scales_by_the_common_norm(rng):
    x = rng.standard_normal((3, 4), np.float32)
    made = result_of(lambda y: onnxblock.optim.ClipGradNorm(0.5)(y, y)[1], x)
    norm = np.sqrt(2 * (x * x).sum())
    np.testing.assert_allclose(made, x * 0.5 / (norm + 1e-6), rtol=1e-6)


def test_a_checkpoint_is_loaded_into_a_model_for_inference(tmp_path):
    model, module = perceptron()
    block = type("Training", (onnxblock.TrainingBlock,), {"build": lambda self, y: onnxblock.loss.MSELoss()(y)})()
    with onnxblock.base(model):
        block("logits")
    onnxblock.save_checkpoint(block.parameters(), tmp_path / "checkpoint")
    for tensor in model.graph.initializer:
        tensor.CopyFrom(onnx.numpy_helper.from_array(np.zeros(tensor.dims, np.float32), tensor.name))
    onnxblock.load_checkpoint_to_model(tmp_path / "checkpoint", model)
    for tensor in model.graph.initializer:
        expected = module.state_dict()[tensor.name].numpy()
        np.testing.assert_array_equal(onnx.numpy_helper.to_array(tensor), expected)
    del model.graph.initializer[0]
    with pytest.raises(CheckpointError, match=r"no initializer 'fc1.weight'"):
        onnxblock.load_checkpoint_to_model(tmp_path / "checkpoint", model)


def inside(call):
    def run():
        with onnxblock.base(identity()):
            call()

    return run


def nested():
    with onnxblock.base(identity()), onnxblock.base(identity()):
        pass


WRONG = {
    "a block outside": (lambda: onnxblock.blocks.Neg()("y"), "there is no base model"),
    "a base in a base": (nested, "there is a base model already"),
    "a base that is none": (lambda: onnxblock.base(None).__enter__(), "the base is a NoneType"),
    "an unknown name": (inside(lambda: onnxblock.loss.MSELoss()("z")), r"no value 'z'"),
    "a taken name": (inside(lambda: onnxblock.blocks.InputLike("y")("x")), "a value 'x' already"),
    "an unknown reduction": (lambda: onnxblock.loss.L1Loss("avg"), "no reduction 'avg'"),
    "a norm of nothing": (lambda: onnxblock.optim.ClipGradNorm(0), "max_norm is 0"),
    "a model before its time": (lambda: onnxblock.optim.SGD().to_model_proto(), "not built yet"),
    "nothing to update": (
        inside(lambda: onnxblock.optim.SGD()(([], []))), "no parameter is trained",
    ),
    "a library": (lambda: onnxblock.custom_op_library("ops.so").__enter__(), "the operators of 'ops.so'"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_what_cannot_work_is_refused(case):
    call, message = WRONG[case]
    with pytest.raises(OntrainError, match=message):
        call()


@pytest.mark.parametrize(
    "loss",
    [
        onnxblock.loss.BCEWithLogitsLoss(pos_weight=np.array([2.0, 3.0, 1.0, 1.0, 5.0])),
        onnxblock.loss.BCEWithLogitsLoss(weight=np.array([2.0, 3.0, 1.0, 1.0, 5.0])),
        onnxblock.loss.CrossEntropyLoss(weight=np.array([2.0, 3.0, 1.0, 1.0, 5.0])),
    ],
    ids=["positive", "elements", "classes"],
)
def test_numbers_of_a_loss_are_not_trained(loss):
    class Training(onnxblock.TrainingBlock):
        def build(self, name):
            return onnxblock.blocks.Mul()(loss(name), onnxblock.blocks.Constant(3.0)())

    block, (model, module) = Training(), perceptron()
    with onnxblock.base(model):
        block("logits")
    trained, others = block.parameters()
    assert {tensor.name for tensor in trained} == set(dict(module.named_parameters())) and not others
