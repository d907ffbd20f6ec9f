"""A file's initializers as they are chosen: what is trained, what is kept, and how the graph says so."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from ontrain import GraphError
from ontrain.capture import REQUIRES_GRAD, load_onnx
from ontrain.graph import Role, by_role
from tests.capture.onnx_file.models import KINDS


@pytest.mark.parametrize(
    "choice",
    [{"trainable": ["fc2.*"]}, {"frozen": ["fc1.*", "norm.bias"]}, {"trainable": ["fc1.weight", "fc2.weight"]}, {}],
)
def test_exactly_the_parameters_that_stay_are_marked(seed, choice):
    loaded = load_onnx(KINDS["mlp"](np.random.default_rng(seed)).proto, **choice)
    assert loaded.trainable and bool(loaded.frozen) == bool(choice)
    for form in (loaded.model, loaded.evaluation):
        marks = {value.name: value.metadata_props.get(REQUIRES_GRAD) for value in by_role(form.graph, Role.PARAMETER)}
        assert marks == {**dict.fromkeys(loaded.trainable), **dict.fromkeys(loaded.frozen, "0")}


def test_a_file_with_an_output_listed_twice_is_not_trained(seed):
    proto = KINDS["mlp"](np.random.default_rng(seed)).proto
    proto.graph.output.append(proto.graph.output[0])
    with pytest.raises(GraphError, match="lists an output twice"):
        load_onnx(proto)


def test_scales_behind_an_identity_are_no_weights():
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 16]>
        g (float[batch, 3, 4, 4] x) => (float[batch, 3, h, w] y) <float[4] s = {1, 1, 1.5, 1.5}> {
            copy = Identity(s)
            again = Identity(copy)
            larger = Resize(x, , s)
            y = Resize(larger, , again)
        }""")
    loaded = load_onnx(model)
    assert loaded.trainable == []
    assert [list(value.shape)[1:] for value in loaded.evaluation.graph.outputs] == [[3, 9, 9]]


def test_a_weight_behind_an_identity_is_one_weight():
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]>
        g (float[n, 4] x) => (float[n, 4] y) <float[4] w = {1, 2, 3, 4}> {
            copy = Identity(w)
            scaled = Mul(x, copy)
            y = Add(scaled, w)
        }""")
    loaded = load_onnx(model)
    assert loaded.trainable == ["w"]
    assert [node.op_type for node in loaded.evaluation.graph] == ["Mul", "Add"]
