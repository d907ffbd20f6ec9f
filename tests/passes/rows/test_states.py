"""Outputs with a row for each token hold zeros for padding, where a session asks for it."""

from __future__ import annotations

import numpy as np
import pytest

from ontrain.passes.rows import HidePaddedStates
from ontrain.passes.serving import Serving, serve
from tests.passes.graphs import graph, operators, values

LOW = np.float32(np.finfo(np.float32).min)
TURN = [0, 1, 3, 2]


def encoder(op, x, mask):
    """States [2, 5, 6] that attend to one another, scores of three classes, and the first tokens."""
    heads = op.Transpose(op.Reshape(x, [2, 5, 2, 3]), perm=[0, 2, 1, 3])
    visible = op.Reshape(op.Greater(mask, op.const(np.float32(0))), [2, 1, 1, 5])
    bias = op.Where(visible, op.const(np.float32(0)), op.const(LOW))
    y, _, _ = op.composite("Attention", heads, heads, heads, bias, scale=1.0, outputs=3)
    states = op.Reshape(op.Transpose(y, perm=[0, 2, 1, 3]), [2, 5, 6])
    scores = op.MatMul(states, op.const(np.ones((6, 3), np.float32)))
    return op.Tanh(states), scores, op.Gather(states, op.const(np.array(0)), axis=1)


@pytest.mark.parametrize(("padding", "hidden"), [("states", [0]), ("zeros", [0, 1]), ("computed", [])])
def test_the_padding_of_outputs_is_hidden_as_asked(padding, hidden):
    model = graph(encoder, x=[2, 5, 6], mask=[2, 5])
    before = values(model)
    serve(model, Serving(padding))
    rewritten, changed = HidePaddedStates().apply(model)
    assert changed == len(hidden) and [value.name for value in rewritten.graph.outputs] == ["y0", "y1", "y2"]
    mask = np.random.default_rng(0)
    mask.standard_normal((2, 5, 6))
    real = mask.standard_normal((2, 5)).astype(np.float32) > 0
    for number, (old, new) in enumerate(zip(before, values(rewritten), strict=True)):
        if number in hidden:
            np.testing.assert_array_equal(new[real], old[real])
            assert not new[~real].any() and not real.all()
        else:
            np.testing.assert_array_equal(new, old)


def test_what_is_read_inside_of_the_graph_too_is_read_as_it_is():
    def make(op, x, mask):
        states, _, _ = encoder(op, x, mask)
        return states, op.ReduceSum(states, keepdims=0)

    model = graph(make, x=[2, 5, 6], mask=[2, 5])
    before = values(model)
    serve(model, Serving("states"))
    rewritten, changed = HidePaddedStates().apply(model)
    assert changed == 1
    np.testing.assert_array_equal(values(rewritten)[1], before[1])


def test_a_graph_whose_mask_hides_the_same_in_every_batch_stays_as_it_is():
    def make(op, x):
        heads = op.Reshape(x, [2, 1, 5, 6])
        hidden = np.where(np.tril(np.ones((5, 5))), 0, LOW).astype(np.float32)
        y, _, _ = op.composite("Attention", heads, heads, heads, op.const(hidden), scale=1.0, outputs=3)
        return op.Reshape(y, [2, 5, 6])

    model = graph(make, x=[2, 5, 6])
    serve(model, Serving("zeros"))
    rewritten, changed = HidePaddedStates().apply(model)
    assert changed == 0 and operators(rewritten) == operators(model)
