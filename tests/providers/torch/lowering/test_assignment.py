"""Assignments of least cost: a device is waited for, and costs that have no assignment are told."""

from __future__ import annotations

import onnx_ir as ir
import pytest
import torch

from ontrain import InputError
from ontrain.operators import record_of
from ontrain.providers.torch.lowering.assignment import _assigned


def test_a_plan_with_an_assignment_is_not_recorded():
    assert record_of(ir.Node("ontrain", "LinearSumAssignment", [])).asks_device


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_costs_of_any_precision_are_taken(dtype):
    rows, columns = _assigned(torch.tensor([[4.0, 1.0, 3.0], [2.0, 0.0, 5.0]], dtype=dtype), False)
    assert rows.tolist() == [0, 1] and columns.tolist() == [1, 0]


@pytest.mark.parametrize("cost", [float("nan"), float("inf")])
def test_costs_that_are_no_numbers_are_told(cost):
    with pytest.raises(InputError, match="2 rows and 3 columns"):
        _assigned(torch.full((2, 3), cost), False)
