"""Preparation of features and linear models equal onnxruntime's."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto

from tests.providers.classical import differences

X = np.array([[1, 2], [0, -1], [-0.5, 0.1], [0, 0]], np.float32)
WHOLE = np.array([[1, 2, -5], [0, 0, 0], [-1, -3, -2]])
NAN = float("nan")
TRANSFORMS = ["NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO"]
LABELS = {"outputs": ("y", "z"), "kinds": [TensorProto.INT64]}

FEATURES = [
    *(("Normalizer", [WHOLE.astype(d)], {"norm": n}) for n in ("MAX", "L1", "L2") for d in ("f4", "f8", "i4", "i8")),
    ("Normalizer", [X[0]], {"norm": "L2"}),
    ("Scaler", [WHOLE], {"offset": [1.5], "scale": [2.0]}),
    ("Scaler", [X], {"offset": [1.5, 1.0], "scale": [2.0, 1.0]}),
    ("Imputer", [np.float32([[NAN, 2], [1, NAN]])],
     {"imputed_value_floats": [7.0, 8.0], "replaced_value_float": NAN}),
    ("Imputer", [WHOLE], {"imputed_value_int64s": [7], "replaced_value_int64": 0, "kinds": [TensorProto.INT64]}),
    ("Binarizer", [X], {"threshold": 0.1}),
    *(("FeatureVectorizer", [X, X], {"inputdimensions": widths}) for widths in ([1, 2], [3, 2], [2, 2])),
    ("FeatureVectorizer", [X[0], X[1]], {"inputdimensions": [2, 2]}),
    ("ArrayFeatureExtractor", [X, np.array([1, 0])], {}),
    ("ArrayFeatureExtractor", [X[0], np.array([1])], {}),
    ("ArrayFeatureExtractor", [X, np.array([[1, 0, 0]])], {}),
    ("OneHotEncoder", [WHOLE], {"cats_int64s": [1, 2, -5]}),
    ("OneHotEncoder", [np.float32([1.5, 2, 7])], {"cats_int64s": [1, 2, 3]}),
]  # fmt: skip


def test_preparation_of_features():
    assert not [text for name, feeds, node in FEATURES for text in differences(name, *feeds, **node)]


def test_linear_models():
    wrong = []
    for case in range(12):
        transform, x = TRANSFORMS[case % 4], X.astype(["f4", "f8", "i8"][case % 3])
        two, three = [0.5, 0.2, -0.1, 0.3], [0.5, 0.2, -0.1, 0.3, 0.2, 0.2]
        for coefficients, intercepts, labels in (
            (two[:2], [0.1], [5, 7]), (two, [0.1, 0.2], [5, 7]), (three, [0.1, 0.2, 0.0], [5, 7, 9])
        ):  # fmt: skip
            wrong += differences(
                "LinearClassifier", x, coefficients=coefficients, intercepts=intercepts, classlabels_ints=labels,
                post_transform=transform, **LABELS,
            )  # fmt: skip
        for coefficients, targets in ((two[:2], 1), (two, 2)):
            wrong += differences(
                "LinearRegressor", X, coefficients=coefficients, intercepts=[0.1, 0.2][:targets], targets=targets,
                post_transform=transform,
            )  # fmt: skip
    # onnxruntime's inverse of the error function is good to three digits.
    wrong += differences(
        "LinearRegressor", np.abs(X) / 4, coefficients=[0.5, 0.2, -0.1, 0.3], intercepts=[0.1, 0.2], targets=2,
        post_transform="PROBIT", rtol=1e-3,
    )  # fmt: skip
    assert not wrong
