"""Convolutions that add and activate where their result is made."""

from __future__ import annotations

import numpy as np
import pytest

from ontrain.passes.inference import FuseConvActivations
from tests.passes.graphs import applied, graph, operators

IMAGES = {"x": [2, 3, 6, 5], "w": [4, 3, 3, 3], "b": [4]}
SUM = {**IMAGES, "z": [2, 4, 4, 3]}
ACTIVATIONS = {
    "Relu": lambda op, y: op.Relu(y),
    "Sigmoid": lambda op, y: op.Sigmoid(y),
    "Tanh": lambda op, y: op.Tanh(y),
    "HardSwish": lambda op, y: op.HardSwish(y),
    "HardSigmoid": lambda op, y: op.HardSigmoid(y, alpha=1 / 6, beta=0.5),
    "LeakyRelu": lambda op, y: op.LeakyRelu(y, alpha=0.3),
    "Swish": lambda op, y: op.composite("Silu", y),
    "Clip": lambda op, y: op.Clip(y, np.float32(-0.5), np.float32(0.25)),
}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_an_activation_is_taken_along(name):
    model = graph(lambda op, x, w, b: ACTIVATIONS[name](op, op.Conv(x, w, b)), **IMAGES)
    fused = applied(FuseConvActivations(), model, count=1, bitwise=False).graph[0]
    assert (fused.op_type, fused.attributes.get_string("activation")) == ("FusedConv", name)


def test_clip_may_have_one_bound():
    model = graph(lambda op, x, w, b: op.Clip(op.Conv(x, w, b), None, np.float32(0.1)), **IMAGES)
    (fused,) = applied(FuseConvActivations(), model, count=1, bitwise=False).graph
    assert fused.attributes["activation_params"].as_floats()[0] == -np.inf


SUMS = {
    "activated": lambda op, y, z: op.Relu(y + z),
    "the other way round": lambda op, y, z: op.Relu(z + y),
    "as it is": lambda op, y, z: y + z,
}


@pytest.mark.parametrize("name", SUMS)
def test_what_is_added_is_taken_along(name):
    model = graph(lambda op, x, w, b, z: SUMS[name](op, op.Conv(x, w, b, strides=[1, 1]), z), **SUM)
    rewritten = applied(FuseConvActivations(), model, count=1, bitwise=False)
    assert operators(rewritten) == ["FusedConv"] and len(rewritten.graph[0].inputs) == 4


def test_an_absent_bias_keeps_its_place():
    model = graph(lambda op, x, w, z: op.Relu(op.Conv(x, w) + z), x=[2, 3, 6, 5], w=[4, 3, 3, 3], z=[2, 4, 4, 3])
    (fused,) = applied(FuseConvActivations(), model, count=1, bitwise=False).graph
    assert fused.inputs[2] is None and fused.inputs[3].name == "z"


@pytest.mark.parametrize("shape", [[4, 4, 3], [2, 4, 1, 3], [1, 4, 4, 3], [3]], ids=str)
def test_a_sum_that_broadcasts_keeps_its_own_node(shape):
    model = graph(lambda op, x, w, b, z: op.Conv(x, w, b) + z, **IMAGES, z=shape)
    assert operators(applied(FuseConvActivations(), model, count=0)) == ["Conv", "Add"]


def test_the_activation_of_a_sum_other_than_relu_keeps_its_own_node():
    model = graph(lambda op, x, w, b, z: op.Sigmoid(op.Conv(x, w, b) + z), **SUM)
    assert operators(applied(FuseConvActivations(), model, count=1, bitwise=False)) == ["FusedConv", "Sigmoid"]


def test_a_result_that_others_read_is_left_alone():
    def make(op, x, w, b):
        y = op.Conv(x, w, b)
        return op.Relu(y), y

    assert operators(applied(FuseConvActivations(), graph(make, **IMAGES), count=0)) == ["Conv", "Relu"]


def test_a_bound_that_is_computed_is_left_alone():
    model = graph(lambda op, x, w, b: op.Clip(op.Conv(x, w, b), op.ReduceMin(b, keepdims=0)), **IMAGES)
    assert "FusedConv" not in operators(applied(FuseConvActivations(), model, count=0))


def test_one_of_two_convolutions_takes_the_other():
    def make(op, x, w, b):
        return op.Relu(op.Conv(x, w, b) + op.Conv(op.Tanh(x), w, b))

    rewritten = applied(FuseConvActivations(), graph(make, **IMAGES), count=1, bitwise=False)
    assert sorted(operators(rewritten)) == ["Conv", "FusedConv", "Tanh"]


@pytest.mark.parametrize("numbers", [{}, {"alpha": 1 / 6, "beta": 0.25}, {"alpha": 0.25, "beta": 0.5}])
def test_a_hard_sigmoid_of_other_numbers_keeps_its_own_node(numbers):
    model = graph(lambda op, x, w, b: op.HardSigmoid(op.Conv(x, w, b), **numbers), **IMAGES)
    assert operators(applied(FuseConvActivations(), model, count=0)) == ["Conv", "HardSigmoid"]
