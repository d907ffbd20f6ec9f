"""What onnxruntime writes into files is taken where the standard of the file's time lacks it."""

from __future__ import annotations

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
