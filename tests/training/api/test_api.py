"""The on-device API: state, calls, errors, and that it needs onnxruntime and numpy alone."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import onnx
import onnxruntime
import pytest
import torch

from ontrain.errors import CheckpointError, InputError, OntrainError, OptionError
from ontrain.training import onnxblock
from ontrain.training.api import CheckpointState, LinearLRScheduler, Module, Optimizer
from ontrain.training.artifacts import LossType, OptimType, generate_artifacts
from tests.training.artifacts.networks import perceptron

TRAINED = ["fc1.weight", "fc2.weight", "fc2.bias"]


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("artifacts")
    generate_artifacts(
        perceptron()[0], requires_grad=TRAINED, frozen_params=["fc1.bias"], loss=LossType.CrossEntropyLoss,
        optimizer=onnxblock.optim.AdamW(), artifact_directory=path, additional_output_names=["logits"],
        nominal_checkpoint=True,
    )  # fmt: skip
    return path


@pytest.fixture
def state(folder):
    return CheckpointState.load_checkpoint(folder / "checkpoint")


@pytest.fixture
def module(folder, state):
    return Module(folder / "training_model.onnx", state, folder / "eval_model.onnx")


@pytest.fixture
def optimizer(folder, module):
    return Optimizer(folder / "optimizer_model.onnx", module)


@pytest.fixture
def batch(rng):
    return rng.standard_normal((6, 12), np.float32), rng.integers(0, 5, 6)


def values(state):
    return {name: parameter.data for name, parameter in state.parameters}


def test_it_needs_neither_torch_nor_onnx(folder):
    code = f"""
import sys
for name in ("torch", "onnx", "onnx_ir", "transformers"):
    sys.modules[name] = None  # an import of it fails
import numpy as np
from ontrain.training.api import CheckpointState, LinearLRScheduler, Module, Optimizer
state = CheckpointState.load_checkpoint(r"{folder}/checkpoint")
module = Module(r"{folder}/training_model.onnx", state, r"{folder}/eval_model.onnx")
optimizer = Optimizer(r"{folder}/optimizer_model.onnx", module)
x, labels = np.ones((3, 12), np.float32), np.array([0, 1, 2])
before = module(x, labels)[0]
for _ in range(5):
    module.lazy_reset_grad(); module(x, labels); optimizer.step()
assert module.eval()(x, labels)[0] < before
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_parameters_are_read_and_set_between_steps(state, module, optimizer, batch):
    parameter = state.parameters["fc2.bias"]
    assert (parameter.name, parameter.requires_grad) == ("fc2.bias", True)
    np.testing.assert_array_equal(parameter.grad, np.zeros(5, np.float32))  # before the first step, as onnxruntime's
    assert not state.parameters["fc1.bias"].requires_grad and "fc3.bias" not in state.parameters
    assert [name for name, _ in state.parameters if state.parameters[name].requires_grad] == TRAINED
    parameter.data = np.full(5, 100 * np.arange(5), np.float32)
    _, logits = module.eval()(*batch)
    assert (logits.argmax(1) == 4).all()
    module.train()(*batch)
    assert parameter.grad.shape == (5,) and state.parameters["fc1.bias"].grad is None
    optimizer.step()
    state.parameters["fc1.bias"] = np.zeros(16, np.float32)
    assert (parameter.data != 100 * np.arange(5)).all() and not state.parameters["fc1.bias"].data.any()


def test_a_frozen_parameter_counts_and_stays(state, module, optimizer, batch):
    before = values(state)
    module(*batch)
    optimizer.step()
    after = values(state)
    assert [name for name in before if not np.array_equal(before[name], after[name])] == ["fc1.weight", *TRAINED[1:]]


def test_gradients_add_up_until_they_are_reset(state, module, batch):
    x, labels = batch
    module(x[:3], labels[:3])
    first = state.parameters["fc2.weight"].grad
    module(x[3:], labels[3:])
    both = state.parameters["fc2.weight"].grad
    module.lazy_reset_grad()
    np.testing.assert_array_equal(state.parameters["fc2.weight"].grad, both)
    module(x[3:], labels[3:])
    second = state.parameters["fc2.weight"].grad
    np.testing.assert_allclose(first + second, both, atol=1e-6)
    module.lazy_reset_grad()
    module(x, labels)
    np.testing.assert_allclose(state.parameters["fc2.weight"].grad, both / 2, atol=1e-6)


def test_a_call_gives_arrays_for_arrays_and_values_for_values(module, batch):
    arrays = module.eval()(*batch)
    values = module(*(onnxruntime.OrtValue.ortvalue_from_numpy(array) for array in batch))
    assert all(isinstance(array, np.ndarray) for array in arrays)
    assert all(isinstance(value, onnxruntime.OrtValue) for value in values)
    np.testing.assert_array_equal(values[1].numpy(), arrays[1])
    assert (module.input_names(), module.output_names()) == (["x", "labels"], ["loss", "logits"])


def test_flat_buffers_carry_parameters_to_another_device(folder, state, module, optimizer, batch):
    assert module.get_parameters_size() == 12 * 16 + 16 * 5 + 5
    assert module.get_parameters_size(trainable_only=False) == 12 * 16 + 16 + 16 * 5 + 5
    module(*batch)
    optimizer.step()
    flat = module.get_contiguous_parameters(trainable_only=True)
    assert isinstance(flat, onnxruntime.OrtValue) and flat.shape() == [module.get_parameters_size()]
    other = CheckpointState.load_checkpoint(folder / "checkpoint")
    Module(folder / "training_model.onnx", other).copy_buffer_to_parameters(flat)
    for name, value in values(state).items():
        np.testing.assert_array_equal(values(other)[name], value)


def test_texts_are_fed_as_arrays_of_str(tmp_path, rng):
    graph = onnx.helper.make_graph(
        [
            onnx.helper.make_node("Cast", ["text"], ["x"], to=onnx.TensorProto.FLOAT),
            onnx.helper.make_node("MatMul", ["x", "w"], ["y"]),
        ],
        "numbers as texts",
        [onnx.helper.make_tensor_value_info("text", onnx.TensorProto.STRING, ["batch", 3])],
        [onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["batch", 2])],
        [onnx.numpy_helper.from_array(rng.standard_normal((3, 2), np.float32), "w")],
    )
    model = onnx.helper.make_model(graph, ir_version=8, opset_imports=[onnx.helper.make_opsetid("", 17)])
    generate_artifacts(model, loss=LossType.MSELoss, optimizer=OptimType.SGD, artifact_directory=tmp_path)
    state = CheckpointState.load_checkpoint(tmp_path / "checkpoint")
    module = Module(tmp_path / "training_model.onnx", state, tmp_path / "eval_model.onnx")
    texts, target = np.array([["1.5", "-2", "0.25"], ["10", "3", "4"]]), rng.standard_normal((2, 2), np.float32)
    numbers, weight = texts.astype(np.float32), state.parameters["w"].data
    error = numbers @ weight - target
    np.testing.assert_allclose(module(texts, target), (error**2).mean(), rtol=1e-5)
    np.testing.assert_allclose(state.parameters["w"].grad, numbers.T @ error / 2, rtol=1e-5)
    np.testing.assert_allclose(module.eval()(texts.astype(object), target), (error**2).mean(), rtol=1e-5)
    with pytest.raises(InputError, match=r"'text' is float32 \[2, 3\], the graph takes str"):
        module(numbers, target)
    module.train()(texts, target)  # adds up
    np.testing.assert_allclose(state.parameters["w"].grad, numbers.T @ error, rtol=1e-5)


def test_a_nominal_checkpoint_trains_once_it_has_values(folder, module, batch):
    state = CheckpointState.load_checkpoint(folder / "nominal_checkpoint")
    other = Module(folder / "training_model.onnx", state)
    with pytest.raises(OptionError, match="the parameters have no values"):
        other(*batch)
    assert "fc2.bias" in state.parameters and len(state.parameters) and other.get_parameters_size() > 0
    with pytest.raises(OptionError, match="the parameters have no values"):
        state.parameters["fc2.bias"]
    with pytest.raises(OptionError, match="the parameters have no values"):
        state.parameters["fc2.bias"] = np.ones(5, np.float32)
    with pytest.raises(OptionError, match="the parameters have no values"):
        dict(state.parameters)
    with pytest.raises(OptionError, match="the parameters have no values"):
        other.get_contiguous_parameters()
    with pytest.raises(OptionError, match="the parameters have no values"):
        Optimizer(folder / "optimizer_model.onnx", other).step()
    other.copy_buffer_to_parameters(module.get_contiguous_parameters(), trainable_only=False)
    assert float(other(*batch)[0]) == float(module(*batch)[0])


def test_training_goes_on_from_a_checkpoint_as_if_it_had_never_stopped(
    folder, tmp_path, state, module, optimizer, batch
):
    def steps(module, optimizer, count):
        for _ in range(count):
            module.lazy_reset_grad()
            module(*batch)
            optimizer.step()

    optimizer.set_learning_rate(0.02)
    steps(module, optimizer, 3)
    state.properties["epoch"], state["best"], state["note"] = 3, 0.5, "half way"
    CheckpointState.save_checkpoint(state, tmp_path / "half", include_optimizer_state=True)
    steps(module, optimizer, 3)
    resumed = CheckpointState.load_checkpoint(tmp_path / "half")
    assert (resumed["epoch"], resumed.properties["best"], resumed["note"]) == (3, 0.5, "half way")
    assert "epoch" in resumed and len(resumed.properties) == 3
    again = Module(folder / "training_model.onnx", resumed)
    rest = Optimizer(folder / "optimizer_model.onnx", again)
    assert rest.get_learning_rate() == pytest.approx(0.02)
    steps(again, rest, 3)
    for name, value in values(state).items():
        np.testing.assert_array_equal(values(resumed)[name], value)


def test_without_optimizer_state_a_checkpoint_holds_the_parameters_alone(tmp_path, state, module, optimizer, batch):
    module(*batch)
    optimizer.step()
    for name, included in (("small", False), ("large", True)):
        CheckpointState.save_checkpoint(state, tmp_path / name, include_optimizer_state=included)
    small, large = ((tmp_path / name).stat().st_size for name in ("small", "large"))
    assert large - small > 2 * 4 * module.get_parameters_size()


def test_the_linear_schedule_rises_and_falls(module, optimizer, batch):
    scheduler = LinearLRScheduler(optimizer, 2, 6, 0.1)
    rates = []
    for _ in range(8):
        rates.append(optimizer.get_learning_rate())
        module.lazy_reset_grad()
        module(*batch)
        optimizer.step()
        scheduler.step()
    np.testing.assert_allclose(rates, [0, 0.05, 0.1, 0.075, 0.05, 0.025, 0, 0], atol=1e-7)


def test_an_exported_model_needs_no_labels_and_gives_the_same(tmp_path, state, module, optimizer, batch):
    module(*batch)
    optimizer.step()
    _, logits = module.eval()(*batch)
    module.export_model_for_inferencing(tmp_path / "inference.onnx", ["logits"])
    session = onnxruntime.InferenceSession(tmp_path / "inference.onnx")
    assert [entry.name for entry in session.get_inputs()] == ["x"]
    np.testing.assert_allclose(session.run(None, {"x": batch[0]})[0], logits, atol=1e-6)


def test_the_files_own_output_can_be_exported_though_the_graphs_return_the_loss_alone(tmp_path, rng):
    model, network = perceptron()
    generate_artifacts(model, loss=LossType.CrossEntropyLoss, artifact_directory=tmp_path)
    state = CheckpointState.load_checkpoint(tmp_path / "checkpoint")
    module = Module(tmp_path / "training_model.onnx", state, tmp_path / "eval_model.onnx")
    x, labels = rng.standard_normal((6, 12), np.float32), rng.integers(0, 5, 6)
    assert module.eval()(x, labels).shape == ()
    module.export_model_for_inferencing(tmp_path / "inference.onnx", ["logits"])
    session = onnxruntime.InferenceSession(tmp_path / "inference.onnx")
    assert [entry.name for entry in session.get_inputs()] == ["x"]
    np.testing.assert_allclose(
        session.run(None, {"x": x})[0], network(torch.from_numpy(x)).detach(), rtol=1e-5, atol=1e-6
    )


WRONG_CALLS = {
    "too few inputs": (lambda x, y: (x,), r"1 inputs were given, the model takes 2[\s\S]*give x, labels"),
    "another dtype": (lambda x, y: (x.astype(np.float64), y), r"'x' is float64 \[6, 12\], the graph takes float32"),
    "another shape": (lambda x, y: (x[:, :5], y), r"input 'x' is float32 \[6, 5\]"),
    "labels that do not fit": (lambda x, y: (x, y[:2]), "onnxruntime failed on this batch"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG_CALLS)
def test_a_batch_that_does_not_fit_is_refused(case, module, state, batch):
    change, message = WRONG_CALLS[case]
    before = values(state)
    with pytest.raises(InputError, match=message):
        module(*change(*batch))
    for name, value in values(state).items():
        np.testing.assert_array_equal(value, before[name])


REFUSED = {
    "unknown parameter": (lambda f, s, m: s.parameters["fc2.bais"], r"no parameter 'fc2.bais'[\s\S]*'fc2.bias'"),
    "unknown property": (lambda f, s, m: s["epoch"], "no property 'epoch'"),
    "property of another type": (lambda f, s, m: s.properties.__setitem__("a", [1]), "property 'a' is a list"),
    "value of another shape": (
        lambda f, s, m: s.parameters.__setitem__("fc2.bias", np.zeros(4, np.float32)), r"has shape \[5\]",
    ),
    "missing model": (lambda f, s, m: Module(f / "model.onnx", s), "there is no model"),
    "missing checkpoint": (lambda f, s, m: CheckpointState.load_checkpoint(f / "nothing"), "there is no checkpoint"),
    "a checkpoint that is none": (
        lambda f, s, m: CheckpointState.load_checkpoint(f / "eval_model.onnx"), "is no checkpoint, or is damaged",
    ),
    "another device": (lambda f, s, m: Module(f / "training_model.onnx", s, device="cuda"), "does not run on 'cuda'"),
    "no evaluation model": (lambda f, s, m: Module(f / "training_model.onnx", s).eval(), "no evaluation model"),
    "unknown output": (lambda f, s, m: m.export_model_for_inferencing(f / "a", ["logit"]), r"'logit'[\s\S]*'logits'"),
    "export into nowhere": (
        lambda f, s, m: m.export_model_for_inferencing(f / "no" / "a.onnx", ["logits"]), "cannot write",
    ),
    "save into nowhere": (lambda f, s, m: CheckpointState.save_checkpoint(s, f / "no" / "a"), "cannot write"),
    "no gradients": (lambda f, s, m: Optimizer(f / "optimizer_model.onnx", m).step(), "there are no gradients yet"),
    "another model's optimizer": (
        lambda f, s, m: Optimizer(f / "eval_model.onnx", m), "does not update parameter 'fc1.weight'",
    ),
    "a buffer too short": (lambda f, s, m: m.copy_buffer_to_parameters(np.zeros(3, np.float32)), "parameters have 277"),
    "NaN for a learning rate": (
        lambda f, s, m: Optimizer(f / "optimizer_model.onnx", m).set_learning_rate(np.nan), "learning rate is nan",
    ),
    "a learning rate below zero": (
        lambda f, s, m: Optimizer(f / "optimizer_model.onnx", m).set_learning_rate(-1), "learning rate is -1",
    ),
    "a text for a learning rate": (
        lambda f, s, m: Optimizer(f / "optimizer_model.onnx", m).set_learning_rate("a"), "learning rate is 'a'",
    ),
    "a property without a name": (lambda f, s, m: s.properties.__setitem__(3, 1), "name of a property is 3"),
    "a warm-up too long": (
        lambda f, s, m: LinearLRScheduler(Optimizer(f / "optimizer_model.onnx", m), 7, 6, 0.1), "a warm-up of 7 of 6",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_work_is_refused(case, folder, state, module):
    call, message = REFUSED[case]
    with pytest.raises(OntrainError, match=message):
        call(folder, state, module)


@pytest.mark.parametrize("damage", ["cut", "flipped header", "another file"])
def test_a_damaged_checkpoint_is_refused(damage, folder, tmp_path):
    content = (folder / "checkpoint").read_bytes()
    if damage == "cut":
        content = content[:-7]
    elif damage == "flipped header":
        content = content.replace(b'\\"trained\\"', b'\\"treined\\"')
    else:
        content = content.replace(b"ontrain.checkpoint/2", b"ontrain.checkpoint/9")
    (tmp_path / "checkpoint").write_bytes(content)
    with pytest.raises(CheckpointError):
        CheckpointState.load_checkpoint(tmp_path / "checkpoint")


def test_a_flipped_byte_anywhere_is_refused_by_the_name_of_the_file(folder, tmp_path):
    content, target = (folder / "checkpoint").read_bytes(), tmp_path / "personal"
    for at in range(0, len(content), 3):
        target.write_bytes(content[:at] + bytes([content[at] ^ 0xFF]) + content[at + 1 :])
        with pytest.raises(CheckpointError, match="personal"):
            CheckpointState.load_checkpoint(target)
    target.write_bytes(content)
    assert values(CheckpointState.load_checkpoint(target)).keys() == {*TRAINED, "fc1.bias"}


def test_a_write_that_fails_leaves_the_checkpoint_that_was_there(folder, state, tmp_path):
    resource = pytest.importorskip("resource", reason="limits of a process are Unix's")
    target = tmp_path / "checkpoint"
    CheckpointState.save_checkpoint(state, target)
    before, limits = target.read_bytes(), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) // 2, limits[1]))
    try:
        with pytest.raises(OptionError, match="cannot write"):
            CheckpointState.save_checkpoint(state, target)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint"]
    assert target.read_bytes() == before
