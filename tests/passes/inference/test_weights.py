"""What passes know of weights, and which names weights have in the end."""

from __future__ import annotations

import numpy as np

from ontrain.graph import Builder, builder, rebuild
from ontrain.passes.inference import weights_of
from tests.passes.inference.weighted import random, weighted

X = {"x": ["batch", 4]}


def test_a_weight_made_of_another_takes_over_its_name_once_nobody_reads_it():
    model = weighted(lambda op, x, w: op.MatMul(x, w), X, {"w": random(4, 4)})
    weights = weights_of(model.graph)

    def doubled(op: Builder, node, inputs):
        return [op.MatMul(inputs[0], weights.add(op, inputs[1], 2 * weights.array(inputs[1])))]

    settled = weights.settle(rebuild(model, doubled))
    assert [value.name for value in settled.graph.inputs] == ["x", "w"]
    np.testing.assert_array_equal(weights.array(settled.graph.inputs[1]), 2 * random(4, 4))


def test_beside_the_weight_that_it_was_made_of_it_has_another_name():
    model = weighted(lambda op, x, w: (op.MatMul(x, w), op.Tanh(w)), X, {"w": random(4, 4)})
    weights = weights_of(model.graph)

    def doubled(op: Builder, node, inputs):
        if node.op_type != "MatMul":
            return None
        return [op.MatMul(inputs[0], weights.add(op, inputs[1], 2 * weights.array(inputs[1])))]

    settled = weights.settle(rebuild(model, doubled))
    assert [value.name for value in settled.graph.inputs] == ["x", "w", "w_1"]
    np.testing.assert_array_equal(weights.array(settled.graph.inputs[1]), random(4, 4))


def test_weights_that_nobody_reads_are_dropped_with_their_values():
    model = weighted(lambda op, x, w, unread: op.MatMul(x, w), X, {"w": random(4, 4), "unread": random(2)})
    weights = weights_of(model.graph)
    assert [value.name for value in weights.settle(model).graph.inputs] == ["x", "w"]
    assert list(weights.values) == ["w"]


def test_what_is_fed_or_computed_is_not_known():
    model = weighted(lambda op, x, w: op.MatMul(x, w), X, {"w": random(4, 4)})
    weights = weights_of(model.graph)
    x, w = model.graph.inputs
    assert weights.holds(w) and not weights.holds(x) and not weights.holds(model.graph.outputs[0])


def test_names_are_settled_without_another_inference(monkeypatch):
    model = weighted(lambda op, x, w: op.Tanh(op.MatMul(x, w)), X, {"w": random(4, 4)})
    weights = weights_of(model.graph)

    def asked(node):
        raise AssertionError(f"{node.op_type} is inferred again")

    monkeypatch.setattr(builder, "infer_node", asked)
    assert [node.op_type for node in weights.settle(model).graph] == ["MatMul", "Tanh"]
