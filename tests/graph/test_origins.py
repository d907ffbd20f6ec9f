"""Constants that the symbolic graph computes from shapes."""

from __future__ import annotations

import numpy as np

from ontrain.graph import specialise
from ontrain.graph.generalise import generalise
from tests.graph.traced import run, traced


def test_a_causal_mask_is_computed_from_the_shape_as_the_model_does(rng):
    def build(op, x):
        length = op.Squeeze(op.Shape(x, start=1, end=2))
        row = op.Range(np.array(0), length, np.array(1))
        later = op.Greater(op.Unsqueeze(row, [0]), op.Unsqueeze(row, [1]))
        return op.Where(later, -1.0, x)

    model = traced(build, ["batch", "length", "length"])
    general = generalise(model, lambda sizes: specialise(model, {"x0": [sizes["batch"], *2 * [sizes["length"]]]}))
    for length in (1, 3, 50):
        x = rng.standard_normal((2, length, length), np.float32)
        np.testing.assert_array_equal(run(general, x), np.where(np.triu(np.ones((length, length)), 1) > 0, -1, x))
