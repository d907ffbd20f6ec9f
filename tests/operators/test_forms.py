"""A node is read by the definition at ontrain's operator set, or by the first later one that has all that it states."""

from __future__ import annotations

import onnx_ir as ir
import pytest

from ontrain.operators import OPSET, form_of


def value(kind):
    return ir.Value(name="x", type=ir.TensorType(ir.DataType[kind]), shape=ir.Shape([2]))


@pytest.mark.parametrize(
    ("op_type", "kinds", "attributes", "since"),
    [
        ("BitShift", ["UINT8", "UINT8"], {"direction": "LEFT"}, 11),
        ("BitShift", ["INT8", "INT8"], {"direction": "LEFT"}, 28),
        ("SpaceToDepth", ["FLOAT"], {"blocksize": 2}, 13),
        ("SpaceToDepth", ["FLOAT"], {"blocksize": 2, "mode": "CRD"}, 28),
        ("Attention", ["FLOAT"] * 3, {}, 23),
        ("Attention", ["FLOAT"] * 6 + ["INT64"], {}, 24),
        ("Attention", ["FLOAT"] * 3, {"left_window_size": 1}, 25),
        ("Cast", ["FLOAT"], {"to": ir.DataType.INT4.value}, 23),
        ("Cast", ["FLOAT"], {"to": ir.DataType.INT2.value}, 25),
        ("Celu", ["FLOAT"], {}, 12),
        ("Celu", ["FLOAT16"], {}, 28),
        ("Swish", ["FLOAT"], {}, 24),
    ],
)
def test_the_first_definition_with_all_that_a_node_states(op_type, kinds, attributes, since):
    assert form_of(ir.node(op_type, [value(kind) for kind in kinds], attributes)).since_version == since


def test_a_node_that_no_definition_fits_has_the_oldest():
    assert form_of(ir.node("Relu", [value("STRING")])).since_version <= OPSET
    assert form_of(ir.Node("elsewhere", "Relu", [value("FLOAT")])) is None
