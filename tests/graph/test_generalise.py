"""A graph read off at a few sizes is right at all others, or refused."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx.reference import ReferenceEvaluator

from ontrain.errors import GraphError
from ontrain.graph import Builder, new_model, specialise
from ontrain.graph.generalise import generalise
from ontrain.graph.polynomials import evaluated, fit, sample_sizes


def traced(build, *shapes):
    """A model of float inputs x0, x1, … with these shapes."""
    inputs = [
        ir.Value(name=f"x{i}", shape=ir.Shape(shape), type=ir.TensorType(ir.DataType.FLOAT))
        for i, shape in enumerate(shapes)
    ]
    model = new_model(inputs, "traced")
    op = Builder(model.graph)
    with op.arithmetic():
        model.graph.outputs.append(build(op, *inputs))
    return model


def generalised(build, *shapes):
    """`build`, which needs numbers for sizes, as one graph for all of them."""

    def make(sizes):
        concrete = [[sizes.get(d, d) for d in shape] for shape in shapes]
        return traced(build, *concrete)

    return generalise(traced(lambda op, *xs: op.Identity(xs[0]), *shapes), make)


def run(model, *arrays):
    proto = ir.to_proto(model)
    return ReferenceEvaluator(proto).run(None, {f"x{i}": a for i, a in enumerate(arrays)})[0]


def size(value, axis):
    return int(value.shape[axis])


CASES = {
    "a mean over the batch": (
        lambda op, x: op.ReduceSum(x, [0], keepdims=0) / size(x, 0),
        lambda x: x.mean(0),
    ),
    "a mean by a factor": (
        lambda op, x: op.ReduceSum(x, [0], keepdims=0) * (0.5 / (size(x, 0) * size(x, 1))),
        lambda x: x.sum(0) * (0.5 / (x.shape[0] * x.shape[1])),
    ),
    "rows": (
        lambda op, x: op.Reshape(x, [size(x, 0) * size(x, 1), 3]),
        lambda x: x.reshape(-1, 3),
    ),
    "two dimensions that are left": (
        lambda op, x: op.Reshape(op.Transpose(x, perm=[1, 0, 2]), [size(x, 1), 1, size(x, 0), 3]),
        lambda x: x.transpose(1, 0, 2)[:, None],
    ),
    "padding up to a length": (
        lambda op, x: op.Pad(x, [0, 0, 0, 0, 2 * size(x, 1) + 1, 0]),
        lambda x: np.pad(x, [(0, 0), (0, 2 * x.shape[1] + 1), (0, 0)]),
    ),
    "zeros of the batch's shape": (
        lambda op, x: x + op.const(np.full((size(x, 0), size(x, 1), 3), 2.5, np.float32)),
        lambda x: x + 2.5,
    ),
    "positions": (
        lambda op, x: x + op.Cast(op.const(np.arange(size(x, 1)).reshape(-1, 1) * 3 + 2), to=ir.DataType.FLOAT),
        lambda x: x + (np.arange(x.shape[1], dtype=np.float32) * 3 + 2)[:, None],
    ),
    "positions for each sample": (
        lambda op, x: x * op.Cast(
            op.const(np.broadcast_to(np.arange(size(x, 1)).reshape(1, -1, 1), (size(x, 0), size(x, 1), 3)).copy()),
            to=ir.DataType.FLOAT,
        ),
        lambda x: x * np.arange(x.shape[1], dtype=np.float32)[:, None],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("batch, length", [(1, 1), (2, 5), (31, 4)])
def test_the_general_graph_is_right_at_sizes_it_was_not_read_off_at(case, batch, length, rng):
    build, reference = CASES[case]
    x = rng.standard_normal((batch, length, 3), np.float32)
    made = run(generalised(build, ["batch", "length", 3]), x)
    np.testing.assert_allclose(made, reference(x), rtol=1e-6)


def test_reshapes_need_no_arithmetic():
    model = generalised(lambda op, x: op.Reshape(x, [size(x, 0), 12]), ["batch", 3, 4])
    assert [node.op_type for node in model.graph] == ["Reshape"]


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


REFUSED = {
    "no polynomial": lambda op, x: op.ReduceSum(x, [0], keepdims=0) * float(size(x, 0) ** 0.5),
    "entries of a constant": lambda op, x: x + op.const(
        np.random.default_rng(size(x, 0)).standard_normal((size(x, 0), 1, 1)).astype(np.float32)
    ),
}  # fmt: skip


def test_numbers_that_are_no_polynomial_are_refused_with_the_node():
    with pytest.raises(GraphError, match="Mul cannot be written for all sizes") as caught:
        generalised(REFUSED["no polynomial"], ["batch", 4, 3])
    assert "polynomial" in str(caught.value.reason) and "Mul" in str(caught.value.node)


def test_a_constant_that_nothing_explains_is_refused():
    with pytest.raises(GraphError, match="Add cannot be written for all sizes"):
        generalised(REFUSED["entries of a constant"], ["batch", 4, 3])


def test_a_graph_whose_nodes_depend_on_the_size_is_refused():
    def build(op, x):
        return op.Relu(op.Tanh(x)) if size(x, 0) == 12 else op.Relu(x)

    with pytest.raises(GraphError, match="depends on its sizes in more than numbers"):
        generalised(build, ["batch", 4])


def test_an_attribute_that_depends_on_the_size_is_refused():
    with pytest.raises(GraphError, match="attributes depend"):
        generalised(lambda op, x: op.LeakyRelu(x, alpha=1 / size(x, 0)), ["batch", 4])


@given(st.lists(st.integers(-50, 50), min_size=4, max_size=4), st.integers(1, 500), st.integers(1, 500))
def test_a_polynomial_of_two_sizes_is_found_exactly(coefficients, batch, length):
    points = sample_sizes(["batch", "length"], {7, 11, 13})
    assert not {n for point in points for n in point.values()} & {7, 11, 13}

    def value(p):
        a, b, c, d = coefficients
        return a + b * p["batch"] + c * p["length"] + d * p["batch"] * p["length"]

    found = fit([value(p) for p in points], points)
    sizes = {"batch": batch, "length": length}
    assert found is not None
    made = sum((c * np.prod([sizes[s] for s in key], dtype=object) for key, c in found), Fraction(0))
    assert made == value(sizes)


@pytest.mark.parametrize("function", [lambda p: p["batch"] ** 2, lambda p: p["batch"] // 2])
def test_what_is_no_polynomial_of_degree_one_is_not_found(function):
    points = sample_sizes(["batch"], set())
    assert fit([function(p) for p in points], points) is None


def test_a_dimension_may_be_stated_in_terms_of_others(rng):
    def build(op, x, labels):
        return op.Add(op.Reshape(x, [size(x, 0) * 4]), labels) / size(labels, 0)

    def make(sizes):
        assert sizes["4*batch"] == 4 * sizes["batch"]
        return traced(build, [sizes["batch"], 4], [sizes["4*batch"]])

    model = traced(lambda op, x, labels: op.Identity(x), ["batch", 4], ["4*batch"])
    general = generalise(model, make)
    x, labels = rng.standard_normal((5, 4), np.float32), rng.standard_normal(20, np.float32)
    np.testing.assert_allclose(run(general, x, labels), (x.ravel() + labels) / 20, rtol=1e-6)


@pytest.mark.parametrize(
    "text, value",
    [("64*batch", 192), ("batch*length + 1", 16), ("batch", 3), ("2 + batch*(length+1)", 20), ("other", None),
     ("batch**2", None), ("batch - 1", None), ("__import__('os')", None), ("a b", None), ("x.1_dim_0", None)],
)  # fmt: skip
def test_names_of_dimensions_are_read_as_sums_of_products(text, value):
    assert evaluated(text, {"batch": 3, "length": 5}) == value
