"""Assignments of least cost: body and kernel beside scipy's function."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
import torch
from scipy.optimize import linear_sum_assignment

from ontrain.graph import Builder, new_model
from ontrain.providers import get_provider

PROVIDERS = ("TorchExecutionProvider", "ReferenceExecutionProvider", "OnnxRuntimeExecutionProvider")
SHAPES = [(1, 1), (2, 5), (5, 2), (4, 4), (7, 9), (9, 7), (0, 3), (3, 0)]


def assigned(provider, cost, maximize):
    value = ir.Value(name="cost", shape=ir.Shape(cost.shape), type=ir.TensorType(ir.DataType.DOUBLE))
    op = Builder(new_model([value], "assignment").graph)
    op.graph.outputs.extend(op.composite("LinearSumAssignment", value, outputs=2, maximize=maximize))
    model = ir.Model(op.graph, ir_version=10)
    runner = get_provider(provider, "cpu")
    outputs = runner.compile(model, runner.create_state([])).run({"cost": torch.from_numpy(cost)})
    return [np.asarray(outputs[result.name]) for result in op.graph.outputs]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("maximize", [0, 1])
@pytest.mark.parametrize("provider", PROVIDERS)
def test_assignments_are_scipys(provider, maximize, rng):
    for shape in SHAPES:
        cost = rng.standard_normal(shape)
        rows, columns = assigned(provider, cost, maximize)
        expected = linear_sum_assignment(cost, bool(maximize))
        assert rows.dtype == columns.dtype == np.int64
        np.testing.assert_array_equal(rows, expected[0])
        np.testing.assert_array_equal(columns, expected[1])


@pytest.mark.parametrize("provider", PROVIDERS[1:])
def test_among_equal_costs_the_sum_is_the_least(provider, rng):
    for shape in SHAPES:
        cost = rng.integers(0, 3, shape).astype(np.float64)
        rows, columns = assigned(provider, cost, 0)
        assert len(set(rows)) == len(set(columns)) == min(shape)
        assert cost[rows, columns].sum() == cost[linear_sum_assignment(cost)].sum()
