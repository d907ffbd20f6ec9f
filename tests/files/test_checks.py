"""What onnxruntime writes into files is taken where the standard of the file's time lacks it."""

from __future__ import annotations

from contextlib import nullcontext

import onnx
import pytest

from ontrain import GraphError
from ontrain.files.checks import check_proto

TEXT = """
    <ir_version: 8, opset_import: ["" : 14]>
    normalised (float[n, 4] x, float[4] scale) => (float[n, 4] y) {{ y = {operator}(x, scale) }}
"""


def test_layer_normalisation_is_taken_at_opsets_before_the_standard_had_it():
    check_proto(onnx.parser.parse_model(TEXT.format(operator="LayerNormalization")), "the model")


def test_its_early_form_may_have_attributes_that_nothing_reads():
    model = onnx.parser.parse_model(TEXT.format(operator="LayerNormalization <epsion = 0.1>"))
    check_proto(model, "the model")
    model.opset_import[0].version = 17
    with pytest.raises(GraphError, match="LayerNormalization has no attribute 'epsion' at opset 17"):
        check_proto(model, "the model")


def test_other_operators_are_not():
    with pytest.raises(GraphError, match="no operator 'GroupNormalization' at opset 14"):
        check_proto(onnx.parser.parse_model(TEXT.format(operator="GroupNormalization")), "the model")


CONVOLUTION = """
    <ir_version: 8, opset_import: ["" : 17]>
    convolved (float[1, 1, 4] x, float[1, 1, 3] w) => (float[1, 1, 4] y) { y = Conv <pads = [1, 1]> (x, w) }
"""


def test_a_standard_operator_is_looked_up_once(monkeypatch):
    model = onnx.parser.parse_model(CONVOLUTION)
    check_proto(model, "the model")

    def asked(*_):
        raise AssertionError("onnx was asked again")

    monkeypatch.setattr(onnx.defs, "get_schema", asked)
    check_proto(model, "the model")


def test_an_operator_of_another_domain_may_get_another_schema():
    text = """
        <ir_version: 8, opset_import: ["" : 17, "of.tests" : 1]>
        shifted (float[4] x) => (float[4] y) { y = of.tests.Shift <by = 1.0> (x) }
    """
    model, attribute = onnx.parser.parse_model(text), onnx.defs.OpSchema.Attribute
    shift = {"by": onnx.defs.OpSchema.AttrType.FLOAT}
    for attributes, refused in ((shift, None), ({}, "no attribute 'by'"), (shift, None)):
        schema = onnx.defs.OpSchema(
            "Shift", "of.tests", 1,
            inputs=[onnx.defs.OpSchema.FormalParameter("x", "T")],
            outputs=[onnx.defs.OpSchema.FormalParameter("y", "T")],
            type_constraints=[("T", ["tensor(float)"], "")],
            attributes=[attribute(name, kind, required=False) for name, kind in attributes.items()],
        )  # fmt: skip
        onnx.defs.register_schema(schema)
        try:
            with nullcontext() if refused is None else pytest.raises(GraphError, match=refused):
                check_proto(model, "the model")
        finally:
            onnx.defs.deregister_schema("Shift", 1, "of.tests")
