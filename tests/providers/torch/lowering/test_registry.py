"""The table of lowerings."""

from __future__ import annotations

import onnx_ir as ir
import pytest

from ontrain.graph import DOMAIN
from ontrain.providers.torch.lowering.registry import attributes, can_add, find_lowering


@pytest.mark.parametrize(
    ("op_type", "domain", "file"),
    [
        ("Gemm", "", "matmul"),
        ("Tanh", "", "elementwise"),
        ("Attention", DOMAIN, "attention"),
        ("Where", "", "elementwise"),
    ],
)
def test_a_lowering_says_in_which_file_it_stands(op_type, domain, file):
    lowering = find_lowering(ir.Node(domain, op_type, []))
    assert lowering is not None and lowering.__module__ == f"ontrain.providers.torch.lowering.{file}"


def test_an_operator_of_another_domain_has_none():
    assert find_lowering(ir.Node("elsewhere", "Gemm", [])) is None


def test_products_add_to_what_is_there_and_activations_do_not():
    assert can_add(ir.Node("", "Gemm", [])) and can_add(ir.Node("", "MatMul", []))
    assert not can_add(ir.Node("", "Tanh", []))


def test_attributes_are_pythons_values():
    node = ir.Node("", "X", [], [ir.AttrInt64("axis", 1), ir.AttrString("mode", "edge"), ir.AttrFloat32s("a", [0.5])])
    assert attributes(node) == {"axis": 1, "mode": "edge", "a": (0.5,)}
