"""Support vector machines equal onnxruntime's."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto

from ontrain.errors import OntrainError
from tests.providers.classical import differences, model_of, own

TRANSFORMS = ["NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO"]
LABELS = {"outputs": ("y", "z"), "kinds": [TensorProto.INT64]}


def machine(rng, case):
    classes, features = 2 + case % 3, 3
    sizes = rng.integers(1, 4, classes)
    vectors, pairs = int(sizes.sum()), classes * (classes - 1) // 2
    node = {
        "kernel_type": ["LINEAR", "POLY", "RBF", "SIGMOID"][case % 4], "kernel_params": [0.5, 0.3, 2.0],
        "coefficients": rng.standard_normal((classes - 1) * vectors).tolist(), "vectors_per_class": sizes.tolist(),
        "support_vectors": rng.standard_normal(vectors * features).tolist(), "rho": rng.standard_normal(pairs).tolist(),
        "classlabels_ints": list(range(10, 10 + classes)), "post_transform": TRANSFORMS[(case // 4) % 4],
    }  # fmt: skip
    if case % 2:
        node |= {"prob_a": rng.standard_normal(pairs).tolist(), "prob_b": rng.standard_normal(pairs).tolist()}
    return node


def test_support_vector_machines(rng):
    wrong = []
    for case in range(24):
        x = rng.standard_normal((6, 3)).astype(np.float32)
        wrong += differences("SVMClassifier", x, **machine(rng, case), **LABELS, rtol=1e-4, atol=1e-4)
        wrong += differences(
            "SVMRegressor", x, kernel_type=["LINEAR", "POLY", "RBF", "SIGMOID"][case % 4], n_supports=4, rho=[0.3],
            kernel_params=[0.5, 0.3, 2.0], coefficients=rng.standard_normal(4).tolist(), one_class=case % 2,
            support_vectors=rng.standard_normal(12).tolist(), rtol=1e-4,
        )  # fmt: skip
        wrong += differences(
            "SVMClassifier", x, kernel_type="LINEAR", coefficients=rng.standard_normal(9).tolist(), rho=[0.3],
            classlabels_ints=[0, 1, 2], kernel_params=[0.5, 0.3, 2.0], **LABELS,
        )  # fmt: skip
    assert not wrong


@pytest.mark.parametrize("classes", [1, 2, 3])
def test_weights_without_vectors_have_no_other_kernel(rng, classes):
    wrong = []
    for case in range(20):
        weights = rng.standard_normal(3 * classes)
        wrong += differences(
            "SVMClassifier", rng.standard_normal((6, 3)).astype(np.float32), rho=[0.3],
            kernel_type=["LINEAR", "POLY", "RBF", "SIGMOID"][case % 4], kernel_params=[0.5, 0.3, 2.0],
            coefficients=(abs(weights) if case % 3 else weights).tolist(), post_transform=TRANSFORMS[case // 5],
            classlabels_ints=list(range(10, 10 + classes)), **LABELS, rtol=1e-4, atol=1e-5,
        )  # fmt: skip
    assert not wrong


def test_vectors_of_one_class_are_refused(rng):
    x = rng.standard_normal((6, 3)).astype(np.float32)
    model = model_of(
        "SVMClassifier", [x], kernel_type="RBF", kernel_params=[0.5, 0.3, 2.0], vectors_per_class=[2],
        support_vectors=[0.5] * 6, coefficients=[1.0, 2.0], rho=[0.1], classlabels_ints=[4], **LABELS,
    )  # fmt: skip
    with pytest.raises(OntrainError, match="SVMClassifier.*\n.*\n.*all of one class"):
        session = own(model)
        session.disable_fallback()
        session.run(None, {"x0": x})
