"""Random numbers that cannot be drawn: onnxruntime's process would end, so the file is refused."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper

from ontrain import GraphError, InferenceSession
from tests.capture.onnx_file.models import value
from tests.fuzz.traps import file

NAN = float("nan")


def draws(op_type: str, **attributes: float) -> bytes:
    like = op_type.endswith("Like")
    drawn = helper.make_node(op_type, ["x"] if like else [], ["r"], **attributes, **({} if like else {"shape": [2]}))
    added = helper.make_node("Add", ["x", "r"], ["y"])
    return file([drawn, added], [value("x", [2])], [value("y", [2])])


@pytest.mark.parametrize(
    ("op_type", "attributes"),
    [
        ("RandomNormal", {"scale": -1.0}), ("RandomNormal", {"scale": 0.0}), ("RandomNormalLike", {"scale": NAN}),
        ("RandomUniform", {"low": 2.0}), ("RandomUniformLike", {"high": -1.0}), ("RandomUniform", {"low": NAN}),
    ],
)  # fmt: skip
def test_draws_from_nothing_are_refused_before_onnxruntime_makes_them(op_type, attributes):
    with pytest.raises(GraphError, match=f"{op_type}.*draws"):
        InferenceSession(draws(op_type, **attributes), providers=["CPUExecutionProvider"])


@pytest.mark.parametrize(
    ("op_type", "attributes"),
    [("RandomNormal", {"scale": 0.5}), ("RandomUniformLike", {"low": 2.0, "high": 2.0}), ("RandomUniform", {})],
)
def test_draws_from_something_are_made(op_type, attributes):
    session = InferenceSession(draws(op_type, **attributes), providers=["CPUExecutionProvider"])
    (y,) = session.run(None, {"x": np.zeros(2, np.float32)})
    assert y.shape == (2,) and np.isfinite(y).all()
