"""Which nodes have a kernel, a body or neither, and what the last are told."""

from __future__ import annotations

import onnx_ir as ir
import pytest
import torch

from ontrain import ProviderError
from ontrain.graph import Builder, new_model
from ontrain.providers.torch.emitter import Emitter
from ontrain.providers.torch.lowering.nodes import lower_nodes, why_not, with_bodies
from ontrain.providers.torch.lowering.registry import find_lowering
from tests.providers.graphs import float_input


def test_a_kernel_or_a_body_is_enough():
    assert why_not(ir.Node("", "Gemm", [])) is None
    assert why_not(ir.Node("com.microsoft", "QuickGelu", [])) is None
    assert why_not(ir.Node("", "StringConcat", [])) == "no lowering for ai.onnx.StringConcat"


def test_operators_without_a_kernel_become_their_bodies_until_none_is_left():
    x = float_input("x", (2, 3))
    model = new_model([x], "bodies")
    op = Builder(model.graph)
    model.graph.outputs.append(op.Tanh(op.call("com.microsoft", "QuickGelu", [x], {})))
    assert find_lowering(model.graph[0]) is None
    lowered = with_bodies(model)
    assert all(find_lowering(node) is not None for node in lowered.graph) and len(lowered.graph) > 2
    assert lowered.graph[-1].op_type == "Tanh"


def test_a_node_that_cannot_run_is_named():
    node = ir.Node("", "StringConcat", [], num_outputs=1, name="joined")
    node.outputs[0].name = "joined"
    with pytest.raises(ProviderError, match=r"(?s)cannot run StringConcat.*StringConcat.*no lowering for"):
        lower_nodes(Emitter(torch.device("cpu")), [node])
