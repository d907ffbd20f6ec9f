"""Each optimizer and each schedule over 200 steps, against the kept curves of independent loops."""

from __future__ import annotations

import json

import numpy as np
import pytest

from ontrain.training import ORTTrainer, amp
from tests.golden.optimizers import FOLDER, LENGTH, RUNS, STEPS, WORDS, eager, fresh, loss_of

pytestmark = pytest.mark.usefixtures("captured_once")

DESC = {
    "inputs": [("src", [LENGTH, "batch"]), ("label", ["rows"])],
    "outputs": [("loss", [], True), ("output", [LENGTH, "batch", WORDS])],
}


@pytest.mark.parametrize("name", RUNS)
def test_the_curve_of_200_steps_is_the_kept_one(name):
    run, (model, data) = RUNS[name], fresh()
    options = {"device": {"id": "cpu"}, "lr_scheduler": run.scheduler()}
    trainer = ORTTrainer(model, DESC, run.config(), loss_of, options)
    curve = [float(trainer.train_step(*batch, fetches=["loss"])) for batch in data]
    golden = json.loads((FOLDER / f"optimizer-{name}.json").read_text())["loss"]
    assert len(curve) == STEPS
    np.testing.assert_allclose(curve, golden, rtol=1e-4)
    assert np.mean(golden[-20:]) < 0.5 * golden[0]


# Of a step's loss against float32's. LAMB scales each tensor's update to its norm, the early noisy ones too. Rounding
# to bfloat16 turns SGD's steps aside by chance: eager autocast itself is 0.007 to 0.017 away, by threads and torch.
HALF = {"adamw-linear": (0.01, 0.01), "sgd-constant": (0.01, 0.03), "lamb-poly": (0.1, 0.1)}
DTYPES = ("float16", "bfloat16")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", HALF)
def test_half_precision_keeps_the_curve_within_the_tolerance(name, dtype):
    run, (model, data) = RUNS[name], fresh()
    precision = {"enabled": True, "dtype": dtype}
    if dtype == "float16":
        precision["loss_scaler"] = amp.DynamicLossScaler(loss_scale=256.0)
    options = {"device": {"id": "cpu"}, "lr_scheduler": run.scheduler(), "mixed_precision": precision}
    trainer = ORTTrainer(model, DESC, run.config(), loss_of, options)
    curve = [float(trainer.train_step(*batch, fetches=["loss"])) for batch in data]
    golden = json.loads((FOLDER / f"optimizer-{name}.json").read_text())["loss"]
    np.testing.assert_allclose(curve, golden, rtol=HALF[name][DTYPES.index(dtype)])
    assert np.mean(curve[-20:]) == pytest.approx(np.mean(golden[-20:]), rel=0.005)
    assert np.abs(np.subtract(curve, golden)).max() > 1e-6, "that was float32"


@pytest.mark.parametrize("name", RUNS)
def test_the_kept_curves_are_eagers(name):
    golden = json.loads((FOLDER / f"optimizer-{name}.json").read_text())["loss"]
    np.testing.assert_allclose(eager(RUNS[name]), golden, rtol=1e-4)
