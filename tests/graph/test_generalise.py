"""A graph read off at a few sizes is right at all others, or refused."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from ontrain.errors import GraphError
from ontrain.graph.generalise import generalise
from tests.graph.traced import REFUSED, generalised, run, size, traced

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
    result = run(generalised(build, ["batch", "length", 3]), x)
    np.testing.assert_allclose(result, reference(x), rtol=1e-6)


def test_reshapes_need_no_arithmetic():
    model = generalised(lambda op, x: op.Reshape(x, [size(x, 0), 12]), ["batch", 3, 4])
    assert [node.op_type for node in model.graph] == ["Reshape"]


def test_numbers_that_are_no_polynomial_are_refused_with_the_node():
    with pytest.raises(GraphError, match="Mul cannot be written for all sizes") as caught:
        generalised(REFUSED["no polynomial"], ["batch", 4, 3])
    assert "polynomial" in str(caught.value.reason) and "Mul" in str(caught.value.node)


def test_a_graph_whose_nodes_depend_on_the_size_is_refused():
    def build(op, x):
        return op.Relu(op.Tanh(x)) if size(x, 0) == 12 else op.Relu(x)

    with pytest.raises(GraphError, match="depends on its sizes in more than numbers"):
        generalised(build, ["batch", 4])


def test_an_attribute_that_depends_on_the_size_is_refused():
    with pytest.raises(GraphError, match="attributes depend"):
        generalised(lambda op, x: op.LeakyRelu(x, alpha=1 / size(x, 0)), ["batch", 4])


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
