"""What a session for inference asks stays with its graph through passes and specialisation."""

from __future__ import annotations

from ontrain.graph import rebuild, specialise
from ontrain.passes.serving import Serving, serve, serving_of
from tests.passes.graphs import graph


def test_a_graph_that_is_made_of_another_is_served_alike():
    model = graph(lambda op, x: op.Tanh(x), x=["batch", 3])
    assert serving_of(model.graph) is None
    serve(model, Serving(padding="zeros"))
    for other in (rebuild(model), specialise(model, {"x": [2, 3]})):
        assert serving_of(other.graph) == Serving(padding="zeros")
