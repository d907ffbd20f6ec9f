"""Guards that keep onnxruntime's process alive."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

from ontrain import InferenceSession
from ontrain.files.traps import guard
from tests.capture.onnx_file.models import const, node, value
from tests.fuzz.traps import INT64, file


@pytest.mark.parametrize("opset", [7, 9, 13, 18])
def test_guards_are_valid_in_every_operator_set(opset):
    body = helper.make_graph(
        [node("Div", "c d", "n"), node("Identity", "go", "g")], "body",
        [value("i", [], INT64), value("go", [], TensorProto.BOOL), value("c", [2], INT64)],
        [value("g", [], TensorProto.BOOL), value("n", [2], INT64)],
    )  # fmt: skip
    proto = onnx.ModelProto.FromString(
        file([node("Loop", "m yes x", "y", body=body)], [value("x", [2], INT64), value("d", [2], INT64)],
             [value("y", [2], INT64)], [const("m", 3), const("yes", True, np.bool_)], opset)
    )  # fmt: skip
    assert guard(proto)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(proto.SerializeToString(), options)
    feeds = {"x": np.array([80, 9]), "d": np.array([2, 3])}
    np.testing.assert_array_equal(session.run(None, feeds)[0], [10, 0])
    with pytest.raises(Exception, match="integer division"):
        session.run(None, {**feeds, "d": np.array([2, 0])})


@pytest.mark.parametrize("opset", [10, 13, 22])
@pytest.mark.parametrize("shape", [(0, 3), (2, 0), (1, 0, 2), (0, 0), (0,), ()], ids=str)
@pytest.mark.parametrize("op_type", ["Div", "Mod"])
def test_a_division_of_nothing_gives_nothing(op_type, shape, opset):
    described = [value(name, [None] * len(shape), INT64) for name in "aby"]
    content = file([node(op_type, "a b", "y")], described[:2], described[2:], [], opset)
    feeds = {"a": np.full(shape, 7), "b": np.full(shape, 2)}
    (wanted,) = onnxruntime.InferenceSession(content).run(None, feeds)
    (result,) = InferenceSession(content, providers=["CPUExecutionProvider"]).run(None, feeds)
    np.testing.assert_array_equal(result, wanted, strict=True)
