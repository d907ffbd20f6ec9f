"""Each optimizer and each schedule over 200 steps, against the kept curves of independent loops."""

from __future__ import annotations

import json

import numpy as np
import pytest

from ontrain.training import ORTTrainer
from tests.golden.optimizers import FOLDER, LENGTH, RUNS, STEPS, WORDS, eager, fresh, loss_of

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
    kept = json.loads((FOLDER / f"optimizer-{name}.json").read_text())["loss"]
    assert len(curve) == STEPS
    np.testing.assert_allclose(curve, kept, rtol=1e-4)
    assert np.mean(kept[-20:]) < 0.5 * kept[0]


def test_the_kept_curves_are_eagers():
    name = "lamb-poly"  # the loop that is longest to write
    kept = json.loads((FOLDER / f"optimizer-{name}.json").read_text())["loss"]
    np.testing.assert_allclose(eager(RUNS[name]), kept, rtol=1e-4)
