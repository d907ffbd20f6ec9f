"""Artifacts of a small network, made once."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from ontrain.training.artifacts import LossType, OptimType, generate_artifacts
from tests.training.artifacts.networks import perceptron


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All files of a perceptron whose first layer's bias is frozen."""
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("artifacts")
    generate_artifacts(
        perceptron()[0],
        requires_grad=["fc1.weight", "fc2.weight", "fc2.bias"],
        frozen_params=["fc1.bias"],
        loss=LossType.CrossEntropyLoss,
        optimizer=OptimType.AdamW,
        artifact_directory=path,
        prefix="my_",
        ort_format=True,
        additional_output_names=["logits"],
        nominal_checkpoint=True,
        step_model=True,
    )
    return path
