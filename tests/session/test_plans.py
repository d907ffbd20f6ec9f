"""What making a plan leaves as it was."""

from __future__ import annotations

import gc

import onnx_ir as ir
import pytest

from ontrain.graph import Builder, Role, new_model, set_role
from ontrain.session.plans import make_plan


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("running", [False, True])
def test_the_garbage_collector_runs_on_as_before(running, fails):
    x = set_role(ir.Value(name="x", shape=ir.Shape(["n"]), type=ir.TensorType(ir.DataType.FLOAT)), Role.INPUT)
    model = new_model([x], "g")
    model.graph.outputs.append(Builder(model.graph).Exp(x))
    seen = []

    def compiler(graph):
        seen.append(gc.isenabled())
        if fails:
            raise ZeroDivisionError
        return graph

    before = gc.isenabled()
    (gc.enable if running else gc.disable)()
    try:
        if fails:
            with pytest.raises(ZeroDivisionError):
                make_plan(model, (("x", (3,)),), compiler)
        else:
            make_plan(model, (("x", (3,)),), compiler)
        assert gc.isenabled() == running and seen == [False]
    finally:
        (gc.enable if before else gc.disable)()
