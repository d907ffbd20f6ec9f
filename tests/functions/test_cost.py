"""What graphs cost: an operator that has a body costs what the body does, whatever was counted before it."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from ontrain.functions import Flops, count_flops, expand
from ontrain.graph import Builder, new_model, rebuild


def normalised(shape: tuple[int, ...], **attributes: object) -> ir.Model:
    x, scale = (
        ir.Value(name=name, shape=ir.Shape(dims), type=ir.TensorType(ir.DataType.FLOAT))
        for name, dims in (("x", shape), ("scale", shape[-1:]))
    )
    model = new_model([x, scale], "normalised")
    op = Builder(model.graph)
    results = op.LayerNormalization(x, scale, **attributes)
    model.graph.outputs.append(results)
    return model


def spelled_out(model: ir.Model) -> Flops:
    return count_flops(rebuild(model, expand))


@pytest.mark.parametrize("shape", [(2, 8), (4, 16), (2, 3, 8)])
def test_a_specified_operator_costs_what_its_body_does_at_each_of_its_sizes(shape):
    first, again = count_flops(normalised(shape)), count_flops(normalised(shape))
    assert first == again == spelled_out(normalised(shape))
    assert first.other > np.prod(shape)


def reduced(*kinds: dict[str, int]) -> Flops:
    x = ir.Value(name="x", shape=ir.Shape((4, 8)), type=ir.TensorType(ir.DataType.FLOAT))
    model = new_model([x], "reduced")
    op = Builder(model.graph)
    model.graph.outputs.extend(op.ReduceLogSumExp(x, **attributes) for attributes in kinds)
    return count_flops(model)


def test_attributes_of_one_value_are_told_apart_by_their_names():
    whole, none = {"keepdims": 1}, {"noop_with_empty_axes": 1}  # over all axes, and over none
    assert reduced(whole) != reduced(none)
    assert reduced(whole, none) == reduced(whole) + reduced(none)
