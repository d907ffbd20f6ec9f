"""Tables of numbers equal onnxruntime's."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto

from ontrain.errors import OntrainError
from tests.providers.classical import differences, feed, model_of, own

NAN = float("nan")
TABLES = [
    ("OneHotEncoder", [np.array([1, 2])], {"cats_int64s": [1, 2], "zeros": 0}),
    ("LabelEncoder", [np.array([1, 7, 2])],
     {"keys_int64s": [2, 1, 2], "values_floats": [0.5, 0.1, 0.2], "default_float": -3.0}),
    ("LabelEncoder", [np.array([[1, 7]])],
     {"keys_int64s": [1, 2], "values_int64s": [5, 6], "kinds": [TensorProto.INT64]}),
    ("LabelEncoder", [np.float32([1, 3])], {"keys_floats": [1.0, 2.0], "values_floats": [5.0, 6.0]}),
]  # fmt: skip


def test_tables():
    assert not [text for name, feeds, node in TABLES for text in differences(name, *feeds, **node)]


def test_a_float_that_is_none_has_a_value_of_its_own():
    x = np.float32([1, NAN, 3])
    model = model_of(
        "LabelEncoder", [x], kinds=[TensorProto.INT64], keys_floats=[3.0, NAN, 1.0], values_int64s=[7, 6, 5]
    )  # fmt: skip
    assert own(model).run(None, feed([x]))[0].tolist() == [5, 6, 7]


def test_a_category_that_is_not_listed_is_refused_where_the_file_says_so():
    x = np.array([1, 7])
    session = own(model_of("OneHotEncoder", [x], cats_int64s=[1, 2], zeros=0))
    session.disable_fallback()
    with pytest.raises(OntrainError, match="a category is not listed"):
        session.run(None, feed([x]))
