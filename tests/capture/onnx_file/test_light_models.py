"""An image classifier that comes with onnx: a real architecture, its weights made by ConstantOfShape."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime

from ontrain.training import ORTTrainer, optim

LIGHT = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"


def test_squeezenet_evaluates_as_in_onnxruntime_and_trains(rng):
    path = LIGHT / "light_squeezenet.onnx"
    session = onnxruntime.InferenceSession(path)
    (source,), (target,) = session.get_inputs(), session.get_outputs()
    x = rng.standard_normal(source.shape).astype(np.float32)
    desc = {
        "inputs": [(source.name, list(source.shape)), ("label", list(target.shape))],
        "outputs": [("loss", [], True), (target.name, list(target.shape))],
    }
    trainer = ORTTrainer(path, desc, optim.SGDConfig(lr=0.1), "MSELoss", {"device": {"id": "cpu"}})
    label = np.zeros(target.shape, np.float32)
    (expected,) = session.run(None, {source.name: x})
    np.testing.assert_allclose(trainer.eval_step(x, label)[1].numpy(), expected, rtol=1e-4, atol=1e-6)
    assert np.isfinite(float(trainer.train_step(x, label)[0]))
