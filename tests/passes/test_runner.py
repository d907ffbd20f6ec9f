"""Passes run in order, and the verifier looks at what each leaves."""

from __future__ import annotations

import onnx_ir as ir
import pytest

from ontrain import GraphError
from ontrain.graph import rebuild
from ontrain.passes import Pass, Simplify, run_passes
from tests.passes.graphs import graph


class _Broken(Pass):
    def apply(self, model):
        broken = rebuild(model)
        broken.graph[0].outputs[0].shape = ir.Shape([7, 7])
        return broken, 1


def test_the_verifier_names_the_pass_that_broke_the_graph():
    with pytest.raises(GraphError, match="after pass _Broken"):
        run_passes(graph(lambda op, x: op.Exp(x), x=[3, 4]), [Simplify(), _Broken()])
