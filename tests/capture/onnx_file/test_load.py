"""A file's initializers as they are chosen: what is trained, what is kept, and how the graph says so."""

from __future__ import annotations

import numpy as np
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
