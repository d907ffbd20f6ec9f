"""Linear layers that add and activate where their result is made."""

from __future__ import annotations

import pytest

from ontrain.passes.inference import FuseLinearActivations
from tests.passes.graphs import applied, graph, operators

LAYER = {"x": [6, 4], "w": [4, 5], "b": [5]}
ACTIVATIONS = {
    "Relu": lambda op, y: op.Relu(y),
    "Sigmoid": lambda op, y: op.Sigmoid(y),
    "Tanh": lambda op, y: op.Tanh(y),
    "Gelu": lambda op, y: op.Gelu(y),
    "Silu": lambda op, y: op.composite("Silu", y),
}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_an_activation_is_taken_along(name):
    model = graph(lambda op, x, w, b: ACTIVATIONS[name](op, op.Gemm(x, w, b)), **LAYER)
    (fused,) = applied(FuseLinearActivations(), model, count=1, bitwise=False).graph
    assert (fused.op_type, fused.attributes.get_string("activation")) == ("Linear", name)


def test_the_form_of_gelu_and_of_the_weight_stay():
    model = graph(lambda op, x, w: op.Gelu(op.Gemm(x, w, transB=1), approximate="tanh"), x=[6, 4], w=[5, 4])
    (fused,) = applied(FuseLinearActivations(), model, count=1, bitwise=False).graph
    assert fused.attributes.get_string("approximate") == "tanh" and fused.attributes.get_int("transB") == 1
    assert len(fused.inputs) == 2


@pytest.mark.parametrize("turned", [False, True])
def test_what_is_added_is_taken_along(turned):
    def make(op, x, w, b, z):
        y = op.Gemm(x, w, b)
        return z + y if turned else y + z

    (fused,) = applied(FuseLinearActivations(), graph(make, **LAYER, z=[6, 5]), count=1, bitwise=False).graph
    assert fused.op_type == "Linear" and fused.inputs[3].name == "z"


def test_reshapes_between_stay_behind_the_layer():
    def make(op, x, w, b, z):
        flat = op.Reshape(x, [6, 4])
        y = op.Reshape(op.Gemm(flat, w, b), [2, 3, 5])
        return op.Gelu(y), op.Reshape(op.Gemm(flat, w, b), [2, 3, 5]) + z

    model = graph(make, x=[2, 3, 4], w=[4, 5], b=[5], z=[2, 3, 5])
    fused = applied(FuseLinearActivations(), model, count=2, bitwise=False)
    assert sorted(operators(fused)) == ["Linear"] * 2 + ["Reshape"] * 4


ALONE = {
    "a sum that broadcasts": (lambda op, x, w, b, z: op.Gemm(x, w, b) + z, [5]),
    "a layer that broadcasts": (lambda op, x, w, b, z: op.Reshape(op.Gemm(x, w, b), [6, 1, 5]) + z, [6, 2, 5]),
    "a scaled product": (lambda op, x, w, b, z: op.Relu(op.Gemm(x, w, b, alpha=0.5)), [1]),
    "a scaled bias": (lambda op, x, w, b, z: op.Relu(op.Gemm(x, w, b, beta=0.5)), [1]),
    "another product's left factor": (lambda op, x, w, b, z: op.Relu(op.Gemm(w, x, transA=1, transB=1)), [1]),
    "a bias by row": (lambda op, x, w, b, z: op.Relu(op.Gemm(x, w, z)), [6, 1]),
    "a bias of its own for each": (lambda op, x, w, b, z: op.Relu(op.Gemm(x, w, z)), [6, 5]),
}


@pytest.mark.parametrize("name", ALONE)
def test_what_is_no_plain_layer_is_left_alone(name):
    make, z = ALONE[name]
    assert "Linear" not in operators(applied(FuseLinearActivations(), graph(make, **LAYER, z=z), count=0))


def test_a_result_that_others_read_is_left_alone():
    def make(op, x, w, b):
        y = op.Gemm(x, w, b)
        return op.Relu(y), y

    assert operators(applied(FuseLinearActivations(), graph(make, **LAYER), count=0)) == ["Gemm", "Relu"]


def test_one_of_two_layers_takes_the_other():
    model = graph(lambda op, x, w, b: op.Gemm(x, w, b) + op.Gemm(op.Tanh(x), w, b), **LAYER)
    assert sorted(operators(applied(FuseLinearActivations(), model, count=1, bitwise=False))) == [
        "Gemm",
        "Linear",
        "Tanh",
    ]


def test_what_was_replaced_is_not_computed():
    model = graph(lambda op, x, w, b: op.Relu(op.Gemm(x, w, b)), **LAYER)
    rewritten, _ = FuseLinearActivations().apply(model)
    assert operators(rewritten) == ["Linear"]
