"""The keys that some query sees are computed from the batch alone."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
from onnx.reference import ReferenceEvaluator

from ontrain.passes.rows.seen import seen_keys
from tests.passes.graphs import graph


def test_keys_that_every_query_has_hidden_are_not_seen():
    def make(op, x, mask):
        visible = op.Greater(mask, op.const(np.float32(0)))
        bias = op.Where(visible, op.const(np.float32(0)), op.const(np.float32(-1e30)))
        return op.Softmax(x + bias, axis=-1), bias

    model = graph(make, x=[2, 1, 4, 5], mask=[2, 1, 1, 5])
    keys = seen_keys(model, model.graph.outputs[1], (2, 5))
    assert keys is not None and [value.name for value in keys.graph.inputs] == ["mask"]
    mask = np.random.default_rng(0).standard_normal((2, 1, 1, 5)).astype(np.float32)
    (seen,) = ReferenceEvaluator(ir.to_proto(keys)).run(None, {"mask": mask})
    np.testing.assert_array_equal(seen, mask[:, 0, 0] > 0)


def test_a_mask_that_never_changes_says_nothing_of_a_batch():
    model = graph(lambda op, x: (op.Tanh(x), op.Identity(op.const(np.zeros((1, 1, 4, 5), np.float32)))), x=[2, 5])
    assert seen_keys(model, model.graph.outputs[1], (2, 5)) is None
