"""Arguments of the wrong kind: each ends in an error that names it, and training goes on as if it had not been."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from ontrain.errors import OntrainError
from ontrain.training.api import CheckpointState, LinearLRScheduler, Module, Optimizer, Parameter
from ontrain.training.artifacts import LossType, OptimType, generate_artifacts
from tests.training.artifacts.networks import perceptron

NO_PATH = (None, 3, [], {}, "", "a\0b", "there/is/none", object())
NO_FLAG = (None, 1, "yes", np.zeros(2))
NOTHING = (None, 3, "text", b"bytes", [], {}, object(), np.zeros(2))
NO_NUMBER = (None, True, "0.1", [], -1.0, float("nan"), float("inf"), np.zeros(2))
NO_COUNT = (None, True, 2.5, "3", -1, [])

CALLS = {
    "load_checkpoint": (NO_PATH, lambda f, s, m, o, value: CheckpointState.load_checkpoint(value)),
    "save_checkpoint": (NO_PATH, lambda f, s, m, o, value: CheckpointState.save_checkpoint(s, value)),
    "state to save": (NOTHING, lambda f, s, m, o, value: CheckpointState.save_checkpoint(value, f / "new")),
    "with moments": (NO_FLAG, lambda f, s, m, o, value: CheckpointState.save_checkpoint(s, f / "new", value)),
    "content": (NOTHING, lambda f, s, m, o, value: CheckpointState(value)),
    "training model": (NO_PATH, lambda f, s, m, o, value: Module(value, s)),
    "evaluation model": (NO_PATH[1:], lambda f, s, m, o, value: Module(f / "training_model.onnx", s, value)),
    "state": (NOTHING, lambda f, s, m, o, value: Module(f / "training_model.onnx", value)),
    "device": (NOTHING, lambda f, s, m, o, value: Module(f / "training_model.onnx", s, device=value)),
    "session options": (
        NOTHING[1:], lambda f, s, m, o, value: Module(f / "training_model.onnx", s, session_options=value),
    ),
    "optimizer model": (NO_PATH, lambda f, s, m, o, value: Optimizer(value, m)),
    "module": (NOTHING, lambda f, s, m, o, value: Optimizer(f / "optimizer_model.onnx", value)),
    "input": ((*NOTHING, [[1.0], [1.0, 2.0]]), lambda f, s, m, o, value: m(value, np.zeros(3, np.int64))),
    "mode": (NO_FLAG, lambda f, s, m, o, value: m.train(value)),
    "buffer": ((*NOTHING, [[1.0], [1.0, 2.0]]), lambda f, s, m, o, value: m.copy_buffer_to_parameters(value)),
    "trained only": (NO_FLAG, lambda f, s, m, o, value: m.get_contiguous_parameters(value)),
    "size of trained only": (NO_FLAG, lambda f, s, m, o, value: m.get_parameters_size(value)),
    "exported file": (NO_PATH, lambda f, s, m, o, value: m.export_model_for_inferencing(value, ["logits"])),
    "exported outputs": (
        (None, 3, "logits", b"logits", [], [3], ["nothing"], {"logits": 1}, np.zeros(2)),
        lambda f, s, m, o, value: m.export_model_for_inferencing(f / "new", value),
    ),
    "parameter": (NOTHING, lambda f, s, m, o, value: s.parameters[value]),
    "parameter by itself": (NOTHING, lambda f, s, m, o, value: Parameter(value, s)),
    "value": ((*NOTHING, [[1.0], [1.0, 2.0]]), lambda f, s, m, o, value: s.parameters.__setitem__("fc2.bias", value)),
    "property": (NOTHING, lambda f, s, m, o, value: s[value]),
    "name of a property": ((None, 3, b"a", [], {}), lambda f, s, m, o, value: s.__setitem__(value, 1)),
    "learning rate": (NO_NUMBER, lambda f, s, m, o, value: o.set_learning_rate(value)),
    "scheduled optimizer": (NOTHING, lambda f, s, m, o, value: LinearLRScheduler(value, 1, 3, 0.1)),
    "warm-up": (NO_COUNT, lambda f, s, m, o, value: LinearLRScheduler(o, value, 3, 0.1)),
    "total": ((*NO_COUNT, 0), lambda f, s, m, o, value: LinearLRScheduler(o, 0, value, 0.1)),
    "highest rate": (NO_NUMBER, lambda f, s, m, o, value: LinearLRScheduler(o, 2, 3, value)),
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("artifacts")
    generate_artifacts(
        perceptron()[0], loss=LossType.CrossEntropyLoss, optimizer=OptimType.AdamW, artifact_directory=path,
        additional_output_names=["logits"],
    )  # fmt: skip
    return path


def run(folder, between):
    """The losses of four steps, with calls between the second and the third."""
    state = CheckpointState.load_checkpoint(folder / "checkpoint")
    module = Module(folder / "training_model.onnx", state, folder / "eval_model.onnx")
    optimizer = Optimizer(folder / "optimizer_model.onnx", module)
    batch = np.linspace(-1, 1, 36, dtype=np.float32).reshape(3, 12), np.array([0, 1, 2])
    losses = []
    for step in range(4):
        if step == 2:
            between(state, module, optimizer)
        module.lazy_reset_grad()
        losses.append(float(module(*batch)[0]))
        optimizer.step()
    return losses


@pytest.mark.parametrize("name", CALLS)
def test_an_argument_of_the_wrong_kind_is_refused_and_changes_nothing(name, folder):
    wrong, call = CALLS[name]

    def between(state, module, optimizer):
        for value in wrong:
            with pytest.raises(OntrainError) as caught:
                call(folder, state, module, optimizer, value)
            assert caught.value.way_out or caught.value.reason, str(caught.value)

    assert run(folder, between) == run(folder, lambda *_: None)
    assert not (folder / "new").exists()
