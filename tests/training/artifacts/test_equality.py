"""What the artifacts train is what PyTorch trains: same batches, same weights."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from torch import nn

from ontrain.training import onnxblock
from ontrain.training.api import CheckpointState, Module, Optimizer
from ontrain.training.artifacts import LossType, generate_artifacts
from tests.training.artifacts.networks import FormerAdamW, batches, convolutional, perceptron

STEPS = 12

OPTIMIZERS = {
    "SGD": (onnxblock.optim.SGD(), lambda p: torch.optim.SGD(p, lr=0.05)),
    "AdamW": (onnxblock.optim.AdamW(weight_decay=0.01), lambda p: FormerAdamW(p, lr=0.05, weight_decay=0.01)),
    "clipped": (
        onnxblock.optim.AdamW(clip_grad=onnxblock.optim.ClipGradNorm(0.1)),
        lambda p: FormerAdamW(p, lr=0.05),
    ),
}


def trainer(folder: Path) -> tuple[Module, Optimizer, CheckpointState]:
    state = CheckpointState.load_checkpoint(folder / "checkpoint")
    module = Module(folder / "training_model.onnx", state, folder / "eval_model.onnx")
    optimizer = Optimizer(folder / "optimizer_model.onnx", module)
    optimizer.set_learning_rate(0.05)
    return module, optimizer, state


def trained_by_torch(module: nn.Module, make, data, *, clip: float | None = None) -> list[float]:
    optimizer, losses = make(module.parameters()), []
    module.train()
    for x, labels in data:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(module(torch.from_numpy(x)), torch.from_numpy(labels))
        loss.backward()
        if clip is not None:
            nn.utils.clip_grad_norm_(module.parameters(), clip)
        optimizer.step()
        losses.append(loss.item())
    return losses


NETWORKS = {"mlp": (perceptron, [12]), "conv": (convolutional, [1, 8, 8])}


@pytest.mark.parametrize("network, kind", [("mlp", "AdamW"), ("conv", "SGD"), ("conv", "clipped")])
def test_weights_equal_those_of_pytorch_after_batches_of_all_sizes(network, kind, tmp_path, rng):
    make_network, shape = NETWORKS[network]
    model, module = make_network()
    block, make = OPTIMIZERS[kind]
    generate_artifacts(model, loss=LossType.CrossEntropyLoss, optimizer=block, artifact_directory=tmp_path)
    ours, optimizer, state = trainer(tmp_path)
    data = batches(rng, shape, STEPS)
    losses = []
    for x, labels in data:
        losses.append(float(ours(x, labels)))
        optimizer.step()
        ours.lazy_reset_grad()
    expected = trained_by_torch(module, make, data, clip=0.1 if kind == "clipped" else None)
    np.testing.assert_allclose(losses, expected, atol=2e-5)
    for name, parameter in module.named_parameters():
        np.testing.assert_allclose(state.parameters[name].data, parameter.detach(), atol=1e-5, err_msg=name)


def test_running_statistics_move_by_the_operators_own_formula(tmp_path, rng):
    # ONNX keeps the biased variance, PyTorch the unbiased one: that much is asked of PyTorch here.
    model, module = convolutional()
    generate_artifacts(model, loss=LossType.CrossEntropyLoss, artifact_directory=tmp_path)
    state = CheckpointState.load_checkpoint(tmp_path / "checkpoint")
    ours = Module(tmp_path / "training_model.onnx", state, tmp_path / "eval_model.onnx")
    mean, var = torch.zeros(4), torch.ones(4)
    for x, labels in batches(rng, [1, 8, 8], 3):
        ours(x, labels)
        with torch.no_grad():
            values = module.conv1(torch.from_numpy(x)).transpose(0, 1).flatten(1)
        mean, var = 0.9 * mean + 0.1 * values.mean(1), 0.9 * var + 0.1 * values.var(1, correction=0)
    np.testing.assert_allclose(state.parameters["norm.running_mean"].data, mean, atol=1e-6)
    np.testing.assert_allclose(state.parameters["norm.running_var"].data, var, atol=1e-6)
    module.norm.running_mean, module.norm.running_var = mean, var
    expected = nn.functional.cross_entropy(module.eval()(torch.from_numpy(x)), torch.from_numpy(labels))
    assert float(ours.eval()(x, labels)) == pytest.approx(expected.item(), abs=1e-5)


def test_the_step_model_alone_trains_as_the_three_models_do(tmp_path, rng):
    model, _ = convolutional()
    block = onnxblock.optim.AdamW(clip_grad=onnxblock.optim.ClipGradNorm(0.5))
    generate_artifacts(
        model, loss=LossType.CrossEntropyLoss, optimizer=block, artifact_directory=tmp_path, step_model=True
    )
    ours, optimizer, state = trainer(tmp_path)
    session = onnxruntime.InferenceSession(tmp_path / "step_model.onnx")
    held = {
        name: parameter.data for name, parameter in CheckpointState.load_checkpoint(tmp_path / "checkpoint").parameters
    }
    for entry in session.get_inputs():
        if entry.name.endswith((".exp_avg", ".exp_avg_sq")):
            held[entry.name] = np.zeros(entry.shape, np.float32)
    for number, (x, labels) in enumerate(batches(rng, [1, 8, 8], 5), 1):
        loss = ours(x, labels)
        optimizer.step()
        ours.lazy_reset_grad()
        hyper = {"learning_rate": np.array(0.05, np.float32), "step": np.array(number, np.float32)}
        results = session.run(None, {"x": x, "labels": labels, **hyper, **held})
        outputs = dict(zip((o.name for o in session.get_outputs()), results, strict=True))
        held = {name: outputs.get(f"{name}.next", value) for name, value in held.items()}
        assert outputs["loss"] == pytest.approx(float(loss), abs=1e-6)
    for name, parameter in state.parameters:
        np.testing.assert_allclose(held[name], parameter.data, atol=1e-6, err_msg=name)


@pytest.mark.parametrize(
    "kind, reference",
    [
        (LossType.MSELoss, nn.functional.mse_loss),
        (LossType.L1Loss, nn.functional.l1_loss),
        (LossType.BCEWithLogitsLoss, nn.functional.binary_cross_entropy_with_logits),
    ],
    ids=lambda v: getattr(v, "name", ""),
)
def test_each_loss_has_pytorchs_value_and_gradients(kind, reference, tmp_path, rng):
    model, module = perceptron()
    generate_artifacts(model, loss=kind, artifact_directory=tmp_path)
    state = CheckpointState.load_checkpoint(tmp_path / "checkpoint")
    ours = Module(tmp_path / "training_model.onnx", state)
    assert ours.input_names() == ["x", "target"]
    x, target = rng.standard_normal((6, 12), np.float32), rng.random((6, 5), np.float32)
    loss = reference(module(torch.from_numpy(x)), torch.from_numpy(target))
    loss.backward()
    assert float(ours(x, target)) == pytest.approx(loss.item(), abs=1e-6)
    for name, parameter in module.named_parameters():
        np.testing.assert_allclose(state.parameters[name].grad, parameter.grad, atol=1e-6, err_msg=name)
