"""Arguments of the wrong kind: each ends in an error that names the argument, and nothing is written."""

from __future__ import annotations

import os

import numpy as np
import onnx
import pytest

from ontrain.errors import OntrainError
from ontrain.training.artifacts import LossType, generate_artifacts
from tests.training.artifacts.networks import perceptron

NO_NAMES = (3, True, b"fc1.bias", [3], [None], ["fc1.bias", 3], [["fc1.bias"]], {"fc1.bias": 1}, object(), np.zeros(2))
NO_FLAG = (None, 1, "yes", [], np.zeros(2))
NO_PATH = (3, True, [], {}, "", "a\0b", object())
WRONG = {
    "model": (None, 3, [], {}, object(), np.zeros(2), "", "there is none.onnx", os.curdir, b"", b"abc"),
    "requires_grad": (*NO_NAMES, "fc1.bias"),
    "frozen_params": (*NO_NAMES, "fc1.bias"),
    "loss": (3, "MSELoss", LossType, [LossType.MSELoss], object()),
    "optimizer": (3, "AdamW", [], object()),
    "artifact_directory": (*NO_PATH, "there is none"),
    "prefix": (None, 3, b"my_", [], os.path.abspath("my_"), "there is none/my_", "a\0b"),
    "ort_format": NO_FLAG,
    "custom_op_library": NO_PATH,
    "additional_output_names": (*NO_NAMES, "logits"),
    "nominal_checkpoint": NO_FLAG,
    "loss_input_names": (*NO_NAMES, "logits"),
    "step_model": NO_FLAG,
}
CASES = [(name, value) for name, several in WRONG.items() for value in several]


@pytest.mark.parametrize(
    ("name", "value"), CASES, ids=lambda value: value if isinstance(value, str) and value in WRONG else ""
)
def test_an_argument_of_the_wrong_kind_is_named(name, value, tmp_path):
    arguments = {"model": perceptron()[0], "loss": LossType.MSELoss, "artifact_directory": tmp_path, name: value}
    with pytest.raises(OntrainError) as caught:
        generate_artifacts(**arguments)
    named = name.removesuffix("_library").removesuffix("_directory").split("_")[0]
    assert named in caught.value.problem.lower() or "folder" in caught.value.problem, str(caught.value)
    assert caught.value.way_out or caught.value.reason, str(caught.value)
    assert not os.listdir(tmp_path)


def test_names_may_come_from_a_generator(tmp_path):
    names = (name for name in ["fc2.bias"])
    generate_artifacts(
        perceptron()[0], requires_grad=names, frozen_params=iter(["fc1.bias"]), loss=LossType.MSELoss,
        artifact_directory=tmp_path,
    )  # fmt: skip
    outputs = [value.name for value in onnx.load(tmp_path / "training_model.onnx").graph.output]
    assert outputs == ["loss", "fc2.bias_grad"]
