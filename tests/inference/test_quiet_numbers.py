"""Infinities and overflows are numbers: a session returns them as onnxruntime does, and no warning comes with them."""

from __future__ import annotations

import warnings

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
import torch

import ontrain
from ontrain.inference.stepwise.kernels.evaluator import Evaluated
from tests.training.conftest import PROVIDERS

TABLE = """<ir_version: 8, opset_import: ["" : 17]>
g (float[n] x) => (float[n] y) <float[3] weights = {0, 1, 2}, int64[1] first = {0}, int64[1] second = {1}> {
    logarithms = Log(weights)
    negative = Neg(weights)
    roots = Sqrt(negative)
    low = Gather(logarithms, first)
    lost = Gather(roots, second)
    odd = Add(low, lost)
    scaled = Div(x, x)
    y = Add(scaled, low)
    unused = Add(x, odd)
}"""
"""A table of constants with −∞ and NaN, and a division of zero by zero in the run."""


@pytest.mark.parametrize("provider", PROVIDERS)
def test_infinities_come_without_a_warning(provider):
    model = onnx.parser.parse_model(TABLE).SerializeToString()
    theirs = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    feeds = {"x": np.array([0, 1], np.float32)}
    with warnings.catch_warnings(), np.errstate(all="warn"):
        warnings.simplefilter("error", RuntimeWarning)
        (y,) = ontrain.InferenceSession(model, providers=[provider]).run(None, feeds)
    np.testing.assert_array_equal(y, theirs.run(None, feeds)[0])
    assert not np.isfinite(y).all()


def test_a_node_that_the_evaluator_runs_gives_no_warning():
    node = ir.Node("", "Log", [ir.Value(name="x")], outputs=[ir.Value(name="y")], version=17)
    with warnings.catch_warnings(), np.errstate(all="warn"):
        warnings.simplefilter("error", RuntimeWarning)
        (y,) = Evaluated(node).run([torch.tensor([0.0, 1.0])], torch.device("cpu"))
    assert y.tolist() == [-np.inf, 0.0]
