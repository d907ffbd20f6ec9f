"""Models of which a few nodes tell that they need no guard are ones that get none."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from ontrain.files import traps
from ontrain.files.harmless import is_harmless

FLOAT, INT = TensorProto.FLOAT, TensorProto.INT64


def model_of(nodes, kinds, weights=(), *, opset=17):
    inputs = [helper.make_tensor_value_info(name, kind, ["n", 3, 4, 4]) for name, kind in kinds.items()]
    outputs = [helper.make_empty_tensor_value_info(nodes[-1].output[0])]
    held = [numpy_helper.from_array(np.asarray(array), name) for name, array in dict(weights).items()]
    graph = helper.make_graph(nodes, "g", inputs, outputs, held)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])


def verdict(model):
    shapes = {tensor.name: tensor.dims for tensor in model.graph.initializer}
    return is_harmless(model.graph, shapes, model.opset_import[0].version)


node = helper.make_node
DIV = node("Div", ["a", "b"], ["y"])
HARMLESS = {
    "fractions": model_of([node("Exp", ["a"], ["b"]), DIV], {"a": FLOAT}),
    "fractions by a weight": model_of(
        [node("MatMul", ["a", "w"], ["c"]), node("Sqrt", ["c"], ["b"]), DIV], {"a": FLOAT}, {"w": np.ones((4, 4))}
    ),
    "fractions by a cast": model_of([node("Cast", ["a"], ["b"], to=FLOAT), DIV], {"a": INT}),
    "a constant divisor": model_of([DIV], {"a": INT}, {"b": np.array([3, 2])}),
    "a constant node": model_of(
        [node("Constant", [], ["b"], value=numpy_helper.from_array(np.array(8))), DIV], {"a": INT}
    ),
    "filters of a size": model_of(
        [node("ConvTranspose", ["a", "w"], ["y"])], {"a": FLOAT}, {"w": np.ones((3, 2, 2, 2))}
    ),
    "a sum": model_of([node("Sum", ["a", "a"], ["y"])], {"a": FLOAT}),
}
SUSPECT = {
    "integers": model_of([DIV], {"a": INT, "b": INT}),
    "integers of a shape": model_of([node("Shape", ["a"], ["b"]), node("Div", ["b", "b"], ["y"])], {"a": FLOAT}),
    "a divisor with a zero": model_of([DIV], {"a": INT}, {"b": np.array([3, 0])}),
    "a divisor of minus one": model_of([DIV], {"a": INT}, {"b": np.array([-1])}),
    "a fed default": model_of([DIV], {"a": INT, "b": INT}, {"b": np.array([3])}),
    "another's operator": model_of([node("Mine", ["a"], ["b"], domain="mine"), DIV], {"a": FLOAT}),
    "a circle": model_of([node("Exp", ["c"], ["b"]), node("Exp", ["b"], ["c"]), DIV], {"a": FLOAT}),
    "an operand left out": model_of([node("Sum", ["a", "", "a"], ["y"])], {"a": FLOAT}),
    "computed filters": model_of([node("Exp", ["a"], ["w"]), node("ConvTranspose", ["a", "w"], ["y"])], {"a": FLOAT}),
}


@pytest.mark.parametrize("case", HARMLESS)
def test_a_model_that_needs_no_guard_is_known(case, monkeypatch):
    model = HARMLESS[case]
    assert verdict(model)
    monkeypatch.setattr(traps, "is_harmless", lambda *_: False)
    assert not traps.guard(model), "the walk over all nodes finds nothing either"


@pytest.mark.parametrize("case", SUSPECT)
def test_a_model_that_may_need_a_guard_is_looked_at_closely(case):
    assert not verdict(SUSPECT[case])
