"""Blocks put models together as onnxruntime.training.onnxblock's do; each is compared with numpy or PyTorch."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import TensorProto, helper
from torch import nn

from ontrain.errors import CheckpointError, InputError, OntrainError, OptionError
from ontrain.training import onnxblock
from ontrain.training.api import CheckpointState, Module
from ontrain.training.artifacts import LossType, generate_artifacts
from tests.training.artifacts.networks import perceptron


def identity():
    """x [batch, 4] as it is."""
    graph = helper.make_graph(
        [helper.make_node("Identity", ["x"], ["y"])], "identity",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 4])],
    )  # fmt: skip
    return helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])


def test_a_label_encoder_maps_labels_and_gives_the_rest_the_default(rng):
    encoder = onnxblock.blocks.LabelEncoder(keys_int64s=[3, 5], values_int64s=[0, 2], default_int64=1)
    labels, scores = np.array([5, 3, 9, 3]), rng.standard_normal((4, 4), np.float32)

    class Whole(onnxblock.ForwardBlock):
        def build(self, name):
            own = onnxblock.blocks.InputLike("labels_like")("own")
            return onnxblock.loss.CrossEntropyLoss()(name, encoder(own))

    model = identity()
    like = helper.make_tensor_value_info("labels_like", TensorProto.INT64, ["batch"])
    model.graph.input.append(like)
    whole = Whole()
    with onnxblock.base(model):
        whole("y")
    session = onnxruntime.InferenceSession(whole.to_model_proto().SerializeToString())
    encoded = session.run(None, {"x": scores, "labels_like": labels, "own": labels})[0]
    wanted = nn.functional.cross_entropy(torch.from_numpy(scores), torch.tensor([2, 0, 1, 0]))
    np.testing.assert_allclose(encoded, wanted, rtol=1e-5)


@pytest.mark.parametrize(
    "lists",
    [
        {}, {"keys_int64s": [1]}, {"keys_int64s": [1], "values_int64s": [1, 2]},
        {"keys_int64s": [1], "keys_floats": [1.0], "values_int64s": [1]},
    ],
)  # fmt: skip
def test_a_label_encoder_without_a_value_for_each_key_is_refused(lists):
    with pytest.raises(OptionError):
        onnxblock.blocks.LabelEncoder(**lists)


@pytest.mark.parametrize("max_norm", [2.5, 1000.0])
def test_a_sequence_of_gradients_is_clipped_by_its_common_norm(rng, max_norm):
    model = onnx.ModelProto(ir_version=9)
    model.graph.name = "clip"
    model.opset_import.add(domain="", version=18)
    model.graph.input.append(helper.make_tensor_sequence_value_info("gradients", TensorProto.FLOAT, None))

    class Clip(onnxblock.ForwardBlock):
        def build(self, name):
            return onnxblock.optim.ClipGradNorm(max_norm)(name)

    clip = Clip()
    with onnxblock.base(model):
        assert isinstance(clip("gradients"), str)
    session = onnxruntime.InferenceSession(clip.to_model_proto().SerializeToString())
    gradients = [rng.standard_normal(shape, np.float32) for shape in [(3, 4), (5,), (2, 2, 2)]]
    clipped = session.run(None, {"gradients": gradients})[0]
    parameters = [nn.Parameter(torch.zeros(g.shape)) for g in gradients]
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = torch.from_numpy(gradient.copy())
    nn.utils.clip_grad_norm_(parameters, max_norm)
    for ours, parameter in zip(clipped, parameters, strict=True):
        np.testing.assert_allclose(ours, parameter.grad, rtol=1e-5)


def test_an_inputs_gradient_is_returned_beside_the_parameters(rng):
    class Loss(onnxblock.TrainingBlock):
        def build(self, name):
            return onnxblock.loss.MSELoss()(name)

    model, module = perceptron()
    x, target = torch.from_numpy(rng.standard_normal((6, 12), np.float32)).requires_grad_(), torch.zeros(6, 5)
    nn.functional.mse_loss(module(x), target).backward()
    for parameters in ([], ["fc2.bias"]):
        loss = Loss()
        for name in ["x", *parameters]:
            loss.requires_grad(name)
        with onnxblock.base(model):
            loss(model.graph.output[0].name)
        training, _ = loss.to_model_proto()
        session = onnxruntime.InferenceSession(training.SerializeToString())
        names = [value.name for value in session.get_outputs()]
        assert names[-1 - len(parameters) :] == [f"{name}_grad" for name in [*parameters, "x"]]
        values = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
        feeds = {"x": x.detach().numpy(), "target": target.numpy()}
        feeds |= {value.name: values[value.name] for value in session.get_inputs() if value.name in values}
        results = dict(zip(names, session.run(None, feeds), strict=True))
        np.testing.assert_allclose(results["x_grad"], x.grad, rtol=1e-4, atol=1e-7)
        for name in parameters:
            np.testing.assert_allclose(results[f"{name}_grad"], module.get_parameter(name).grad, rtol=1e-4, atol=1e-7)


def test_a_model_without_weights_has_a_loss_and_no_gradients(tmp_path, rng):
    generate_artifacts(identity(), loss=LossType.MSELoss, artifact_directory=tmp_path)
    state = CheckpointState.load_checkpoint(tmp_path / "checkpoint")
    module = Module(tmp_path / "training_model.onnx", state, tmp_path / "eval_model.onnx")
    x, target = rng.standard_normal((2, 3, 4), np.float32)
    np.testing.assert_allclose(module(x, target), ((x - target) ** 2).mean(), rtol=1e-5)
    assert module.output_names() == ["loss"] and len(state.parameters) == 0


def test_a_block_reads_the_models_path_and_its_shapes():
    class Twice(onnxblock.blocks.Block):
        def __init__(self):
            super().__init__(temp_file_name="twice.onnx")

        def build(self, name):
            result = onnxblock.blocks.Add()(name, name)
            inferred = {value.name: value for value in self.infer_shapes_on_base().graph.value_info}
            dims = inferred[result].type.tensor_type.shape.dim
            assert (dims[0].dim_param, dims[1].dim_value) == ("batch", 4)
            return result

    with onnxblock.base(identity(), "folder/model.onnx") as accessor:
        assert accessor.has_path and accessor.path == "folder/model.onnx"
        Twice()("y")
    with onnxblock.base(identity()) as accessor:
        assert not accessor.has_path
        with pytest.raises(InputError, match="path is not known"):
            _ = accessor.path


def result_of(build, *arrays):
    """What a block makes of the value "y" and further inputs."""

    class Whole(onnxblock.ForwardBlock):
        def build(self, name):
            return build(name)

    whole = Whole()
    with onnxblock.base(identity()):
        whole("y")
    session = onnxruntime.InferenceSession(whole.to_model_proto().SerializeToString())
    return session.run(None, dict(zip([entry.name for entry in session.get_inputs()], arrays, strict=True)))[0]


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
    y, expected = result_of(build, x), reference(x)
    np.testing.assert_allclose(y, expected, rtol=2e-6, atol=1e-6)
    assert y.dtype == expected.dtype


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
    assert [parameter.name for parameter in trained] == ["linear.weight", "linear.bias"] and others == []
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
    clipped = result_of(lambda y: onnxblock.optim.ClipGradNorm(0.5)(y, y)[1], x)
    norm = np.sqrt(2 * (x * x).sum())
    np.testing.assert_allclose(clipped, x * 0.5 / (norm + 1e-6), rtol=1e-6)


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
