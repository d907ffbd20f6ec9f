"""Kept loss curves, run again through the whole engine."""

from __future__ import annotations

import json

import numpy as np
import pytest

from ontrain.training import ORTTrainer
from tests.golden.cases import CASES, FOLDER, eager, fresh

pytestmark = pytest.mark.usefixtures("captured_once")


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize(
    "provider", ["TorchExecutionProvider", "OnnxRuntimeExecutionProvider", "ReferenceExecutionProvider"]
)
def test_the_curve_is_the_kept_one(name, provider):
    case = CASES[name]
    model, data = fresh(case)
    names = [f"input_{i}" for i in range(len(case.dims))]
    desc = {"inputs": list(zip(names, case.dims, strict=True)), "outputs": [("loss", [], True)]}
    options = {
        "device": {"id": "cpu"}, "provider": provider,
        "utils": {"grad_norm_clip": case.clip is not None, "max_grad_norm": case.clip or 1.0},
    }  # fmt: skip
    trainer = ORTTrainer(model, desc, case.config(), options=options)
    steps = 15 if provider.startswith("Reference") else len(data)  # the evaluator takes its time
    curve = [float(trainer.train_step(*batch)) for batch in data[:steps]]
    golden = json.loads((FOLDER / f"{name}.json").read_text())["loss"]
    np.testing.assert_allclose(curve, golden[:steps], rtol=1e-4)


@pytest.mark.parametrize("name", CASES)
def test_the_kept_curves_are_eagers_and_learn(name):
    golden = json.loads((FOLDER / f"{name}.json").read_text())["loss"]
    np.testing.assert_allclose(eager(CASES[name]), golden, rtol=1e-4)
    assert np.mean(golden[-10:]) < 0.8 * np.mean(golden[:5])
