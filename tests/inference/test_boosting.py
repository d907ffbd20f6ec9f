"""Models of LightGBM and XGBoost give what these predict, on TorchExecutionProvider and on the default provider."""

from __future__ import annotations

import numpy as np
import pytest

import ontrain

onnxmltools = pytest.importorskip("onnxmltools")

from onnxmltools.convert.common.data_types import FloatTensorType  # noqa: E402

rng = np.random.default_rng(0)
X = rng.standard_normal((1000, 6)).astype(np.float32)
X[rng.random(X.shape) < 0.05] = np.nan
SUM = np.nansum(X[:, :3], 1)
TARGETS = {"Regressor": SUM, "Classifier": np.digitize(SUM, [-1, 1])}


def fitted(library, kind, two):
    package = pytest.importorskip(library)
    prefix = {"lightgbm": "LGBM", "xgboost": "XGB"}[library]
    options = {"verbose": -1} if library == "lightgbm" else {}
    target = (SUM > 0).astype(int) if two else TARGETS[kind]
    return getattr(package, prefix + kind)(n_estimators=30, **options).fit(X[:400], target[:400])


@pytest.mark.parametrize("kind, two", [("Regressor", False), ("Classifier", False), ("Classifier", True)])
@pytest.mark.parametrize("library", ["lightgbm", "xgboost"])
def test_what_is_predicted(library, kind, two):
    model = fitted(library, kind, two)
    convert = getattr(onnxmltools, f"convert_{library}")
    file = convert(model, initial_types=[("X", FloatTensorType([None, 6]))], target_opset=15).SerializeToString()
    for providers in (["TorchExecutionProvider"], None):
        session = ontrain.InferenceSession(file, providers=providers)
        for size in (1000, 1, 0)[: 3 if providers else 2]:
            label, *scores = session.run(None, {"X": X[:size]})
            if not size:
                assert len(label) == 0
            elif kind == "Regressor":
                np.testing.assert_allclose(label.reshape(-1), model.predict(X[:size]), rtol=1e-4, atol=1e-4)
            else:
                chances = scores[0]
                if isinstance(chances, list):
                    chances = np.array([[*row.values()] for row in chances])
                np.testing.assert_allclose(chances, model.predict_proba(X[:size]), rtol=1e-4, atol=1e-4)
                np.testing.assert_array_equal(label, model.predict(X[:size]))
