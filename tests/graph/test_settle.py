"""What the walk at prime sizes says about the symbols of a graph's inputs."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from ontrain.graph import Builder, new_model
from ontrain.graph.settle import settle, settled


def graph_of(build, **shapes):
    """A model of float inputs; `build` is given the builder and the inputs."""
    inputs = [ir.Value(name=n, shape=ir.Shape(s), type=ir.TensorType(ir.DataType.FLOAT)) for n, s in shapes.items()]
    model = new_model(inputs, "net")
    op = Builder(model.graph)
    model.graph.outputs.append(build(op, *inputs))
    return model


def weight(*shape):
    return np.ones(shape, np.float32)


CASES = {
    "product": (lambda op, x: op.MatMul(x, weight(6, 4)), {"x": ["n", "d"]}, {"d": 6}),
    "product of a vector": (lambda op, x: op.MatMul(x, weight(6, 4)), {"x": ["d"]}, {"d": 6}),
    "Gemm, transposed": (lambda op, x: op.Gemm(x, weight(4, 6), transA=1, transB=1), {"x": ["d", "n"]}, {"d": 6}),
    "Gemm's summand": (lambda op, x, c: op.Gemm(x, weight(6, 4), c), {"x": ["n", 6], "c": ["m", "k"]},
                       {"m": "n", "k": 4}),
    "convolution of groups": (lambda op, x: op.Conv(x, weight(8, 3, 1, 1), group=2), {"x": ["n", "c", 9, 9]}, {"c": 6}),
    "transposed convolution": (lambda op, x: op.ConvTranspose(x, weight(3, 8, 1, 1)), {"x": ["n", "c", 9, 9]},
                               {"c": 3}),
    "sum": (lambda op, x, y: op.Add(x, y), {"x": ["n", "d"], "y": ["m", 1]}, {"m": "n"}),
    "bias": (lambda op, x: op.Add(x, weight(5)), {"x": ["n", "d"]}, {"d": 5}),
    "layer norm": (lambda op, x: op.LayerNormalization(x, weight(5)), {"x": ["n", "d"]}, {"d": 5}),
    "instance norm": (lambda op, x: op.InstanceNormalization(x, weight(5), weight(5)), {"x": ["n", "c", 9]}, {"c": 5}),
    "joined": (lambda op, x, y: op.Concat(x, y, axis=1), {"x": ["n", "a", "d"], "y": ["m", "b", 4]},
               {"m": "n", "d": 4}),
    "einsum": (lambda op, x, y: op.Einsum(x, y, equation="bi, bij -> bj"), {"x": ["n", "d"], "y": ["m", 6, 5]},
               {"m": "n", "d": 6}),
    "through a reshape": (
        lambda op, x: op.MatMul(op.Reshape(x, op.Concat(op.Shape(x, end=1), np.array([-1]), axis=0)), weight(6, 4)),
        {"x": ["n", "d"]}, {"d": 6},
    ),
    "a chain": (lambda op, x, y, z: op.MatMul(op.Add(op.Mul(x, y), z), weight(6, 4)),
                {"x": ["a", "b"], "y": ["c", "d"], "z": ["e", "f"]},
                {"c": "a", "e": "a", "b": 6, "d": 6, "f": 6}),
    "nothing to say": (lambda op, x: op.Relu(x), {"x": ["n", "d"]}, {}),
    "a product of sizes": (lambda op, x: op.MatMul(op.Flatten(x), weight(35, 4)), {"x": ["n", "h", "w"]}, {}),
}  # fmt: skip


@pytest.mark.parametrize("build, shapes, expected", CASES.values(), ids=CASES)
def test_symbols_become_what_they_meet(build, shapes, expected):
    assert settle(graph_of(build, **shapes)) == expected


def test_a_settled_model_has_its_sizes_and_nothing_else_changed():
    model = settled(graph_of(lambda op, x: op.MatMul(x, weight(6, 4)), x=["n", "d"]))
    (x,), (y,) = model.graph.inputs, model.graph.outputs
    assert list(x.shape) == ["n", 6] and list(y.shape) == ["n", 4]


def test_a_size_that_happens_to_be_a_symbols_prime_settles_nothing():
    # The convolution takes 6 off h: where primes lie six apart, that is the size that stands for v.
    def build(op, v, x, z):
        rows = op.ReduceMean(op.Conv(x, weight(1, 1, 7, 7)), np.array([0, 1, 3]), keepdims=0)
        return op.Concat(op.Add(rows, z), v, axis=0)

    assert settle(graph_of(build, v=["v"], x=[1, 1, "h", 9], z=["z"])) == {}
