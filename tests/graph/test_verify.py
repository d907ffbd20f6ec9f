"""The verifier finds what a pass may break."""

from __future__ import annotations

import onnx_ir as ir
import pytest

from ontrain import GraphError
from ontrain.graph import Builder, Role, new_model, set_role, set_updates, verify
from tests.graph.values import value


def test_the_verifier_finds_each_kind_of_damage():
    def fresh():
        x = value("x", [3])
        model = new_model([x], "g")
        op = Builder(model.graph)
        model.graph.outputs.append(op.Tanh(op.Exp(x)))
        return model, list(model.graph)

    verify(fresh()[0])

    model, (exp, tanh) = fresh()
    model.graph.remove(exp)
    model.graph.insert_after(tanh, exp)
    with pytest.raises(GraphError, match="before it is defined"):
        verify(model)

    model, (exp, tanh) = fresh()
    exp.outputs[0].shape = ir.Shape([4])
    with pytest.raises(GraphError, match="where its operator makes"):
        verify(model)

    model, (exp, tanh) = fresh()
    exp.outputs[0].dtype = ir.DataType.DOUBLE
    with pytest.raises(GraphError):
        verify(model)

    model, (exp, tanh) = fresh()
    tanh.outputs[0].name = exp.outputs[0].name
    with pytest.raises(GraphError, match="defined twice"):
        verify(model)

    model, _ = fresh()
    set_updates(model.graph.outputs[0], "nothing")
    with pytest.raises(GraphError, match="no resident input"):
        verify(model)

    model, _ = fresh()
    model.graph.inputs.append(set_role(value("w", [3]), Role.PARAMETER))
    set_updates(model.graph.outputs[0], "x")  # there is a resident input, and x is none
    with pytest.raises(GraphError, match="'x', which is no resident input"):
        verify(model)
