"""Products of dynamically quantised linear layers, with onnxruntime's numbers, and what is left alone."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper

from tests.providers.torch.lowering.files import assert_as_onnxruntime, calls, file_of

pytestmark = pytest.mark.usefixtures("units")

NAN, INF = np.nan, np.inf
FUSED, PLAIN = "onnxruntime_MatMulIntegerToFloat", "onnxruntime_MatMulInteger"


def _layer(rng, x, *, kind=np.int8, columns=False, bias=None, turned=False, more=()):
    """A linear layer as onnxruntime's dynamic quantiser writes it."""
    width = 7
    shape = (width,) if columns else ()
    bounds = np.iinfo(kind)
    weights = {
        "w": rng.integers(bounds.min, bounds.max + 1, (x.shape[-1], width)).astype(kind),
        "t": np.asarray(rng.uniform(0.001, 0.1, shape), np.float32), "w0": np.asarray(rng.integers(0, 9, shape), kind),
    }  # fmt: skip
    nodes = [
        helper.make_node("DynamicQuantizeLinear", ["x"], ["a", "s", "a0"]),
        helper.make_node("MatMulInteger", ["a", "w", "a0", "w0"], ["whole"]),
        helper.make_node("Cast", ["whole"], ["real"], to=1),
        helper.make_node("Mul", ["s", "t"], ["scale"]),
        helper.make_node("Mul", ["scale", "real"] if turned else ["real", "scale"], ["y"]),
    ]
    if bias is not None:
        weights["b"] = rng.standard_normal(bias).astype(np.float32)
        nodes.append(helper.make_node("Add", ["b", "y"] if turned else ["y", "b"], ["z"]))
    return file_of([*nodes, *more], {"x": x}, weights, ["y" if bias is None else "z", *(n.output[0] for n in more)])


def _reals(rng, shape, hostile=False):
    x = rng.standard_normal(shape).astype(np.float32)
    if hostile:
        x.reshape(-1)[::5] = NAN
    return x


@pytest.mark.sampled(3)
@pytest.mark.parametrize("hostile", [False, True], ids=["numbers", "NaN"])
@pytest.mark.parametrize("turned", [False, True], ids=["as written", "turned"])
@pytest.mark.parametrize("bias", [None, (7,)], ids=str)
@pytest.mark.parametrize("columns", [False, True], ids=["one scale", "one a column"])
@pytest.mark.parametrize("kind", [np.int8, np.uint8], ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("shape", [(3, 16), (2, 5, 33), (1, 1)], ids=str)
def test_a_layer_is_one_product(rng, units, shape, kind, columns, bias, turned, hostile):
    x = _reals(rng, shape, hostile)
    model = _layer(rng, x, kind=kind, columns=columns, bias=bias, turned=turned)
    names = calls(assert_as_onnxruntime(model, {"x": x}, rtol=1e-6, atol=1e-6))
    assert names.count(FUSED) == (1 if units else 0)
    assert PLAIN not in names and len(names) == 2 if units else "copy_" in names


@pytest.mark.parametrize("number", [INF, -INF, 3e38], ids=str)
def test_ranges_without_end_are_as_onnxruntimes(rng, number):
    x = _reals(rng, (3, 16))
    x[1, 2] = number
    assert_as_onnxruntime(_layer(rng, x, bias=(7,)), {"x": x}, rtol=1e-6, atol=1e-6)


def test_what_is_added_of_another_shape_stays_behind(rng, units):
    x = _reals(rng, (3, 16))
    names = calls(assert_as_onnxruntime(_layer(rng, x, bias=(3, 1)), {"x": x}, rtol=1e-6, atol=1e-6))
    assert names.count("add") == 1 and names.count(FUSED) == (1 if units else 0)


def test_a_product_that_others_read_is_left_alone(rng, units):
    x = _reals(rng, (3, 16))
    model = _layer(rng, x, more=[helper.make_node("Neg", ["real"], ["other"])])
    names = calls(assert_as_onnxruntime(model, {"x": x}, rtol=1e-6, atol=1e-6))
    assert FUSED not in names and names.count(PLAIN) == (1 if units else 0)


def test_vectors_are_left_alone(rng):
    x = _reals(rng, (16,))
    assert FUSED not in calls(assert_as_onnxruntime(_layer(rng, x), {"x": x}, rtol=1e-6, atol=1e-6))
