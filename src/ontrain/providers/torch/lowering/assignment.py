"""Assignments of least cost by scipy where it is installed. It takes arrays, so a device is waited for."""

from __future__ import annotations

import importlib
import importlib.util
from functools import cache
from typing import Any

import onnx_ir as ir
import torch

from ontrain.errors import InputError
from ontrain.providers.torch.emitter import Emitter
from ontrain.providers.torch.lowering.registry import attributes, lowers_composite

__all__: list[str] = []


@cache
def _installed() -> bool:
    return importlib.util.find_spec("scipy") is not None


@lowers_composite("LinearSumAssignment", when=lambda _: _installed())
def linear_sum_assignment(e: Emitter, node: ir.Node) -> None:
    cost, maximize = e.value(node.inputs[0]), bool(attributes(node).get("maximize", 0))
    e.compute(_assigned, cost, maximize, outs=[e.out(v) for v in node.outputs], fresh=True)


def _assigned(cost: torch.Tensor, maximize: bool) -> tuple[torch.Tensor, torch.Tensor]:
    function: Any = importlib.import_module("scipy.optimize").linear_sum_assignment
    try:
        rows, columns = function(cost.cpu().double().numpy(), maximize)
    except ValueError as error:
        raise InputError(
            f"no assignment of the {cost.shape[0]} rows and {cost.shape[1]} columns of a cost matrix",
            reason=str(error), way_out="look for costs that are no numbers, or infinite",
        ) from error  # fmt: skip
    return torch.from_numpy(rows).to(cost.device), torch.from_numpy(columns).to(cost.device)
