"""Assignments of least cost, as losses of detectors match predictions and objects: scipy's function asks for values."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from ontrain.capture.autograd import traced_here
from ontrain.capture.loaded import files_with
from ontrain.capture.number_arrays import TracedArray
from ontrain.internals import substituted, tensor_of

__all__ = ["traced_assignments"]

_NAME = "linear_sum_assignment"


@contextmanager
def traced_assignments() -> Iterator[None]:
    """Make `scipy.optimize.linear_sum_assignment` an operator of the trace wherever a file has it under its name.

    What scipy takes and returns are arrays, and losses that match groups of predictions join them: `torch.from_numpy`
    and `numpy.concatenate` take tensors of the trace, too. Arrays and other threads get the functions' own results.
    """
    own = getattr(sys.modules.get("scipy.optimize"), _NAME, None)
    files = [] if own is None else [file for file, function in files_with(_NAME) if function is own]
    places: list[tuple[Any, str, Any]] = [(file, _NAME, _traceable(own)) for file in files]
    arrays: list[tuple[Any, str, Any]] = [
        (np, "concatenate", _joining(np.concatenate)), (torch, "from_numpy", _passing(torch.from_numpy)),
    ]  # fmt: skip
    with substituted([*places, *arrays] if places else []):
        yield


def _passing(own: Any) -> Callable[..., Any]:
    def from_numpy(array: Any) -> torch.Tensor:
        return array if isinstance(array, torch.Tensor) and traced_here() else own(array)

    return from_numpy


def _traceable(own: Any) -> Callable[..., Any]:
    def linear_sum_assignment(cost_matrix: Any, maximize: bool = False) -> Any:
        if isinstance(cost_matrix, TracedArray):
            cost_matrix = cost_matrix.tensor
        traced = isinstance(cost_matrix, torch.Tensor) and cost_matrix.ndim == 2 and traced_here()
        return _assign(cost_matrix, bool(maximize)) if traced else own(cost_matrix, maximize)

    return linear_sum_assignment


def _joining(own: Any) -> Callable[..., Any]:
    def concatenate(arrays: Sequence[Any], axis: int = 0, **options: Any) -> Any:
        traced = not options and any(isinstance(array, torch.Tensor) for array in arrays) and traced_here()
        return torch.cat([tensor_of(array) for array in arrays], axis) if traced else own(arrays, axis, **options)

    return concatenate


@torch.library.custom_op("ontrain::assign", mutates_args=())
def _assign(cost: torch.Tensor, maximize: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """What stands in a trace for scipy's function: rows in ascending order and their columns, both int64."""
    function: Any = getattr(importlib.import_module("scipy.optimize"), _NAME)  # the caller has it
    rows, columns = function(cost.detach().cpu().double().numpy(), maximize)
    return torch.from_numpy(rows).to(cost.device), torch.from_numpy(columns).to(cost.device)


@_assign.register_fake
def _(cost: torch.Tensor, maximize: bool) -> tuple[torch.Tensor, torch.Tensor]:
    rows, columns = cost.shape
    # A condition of the graph: mostly there are more predictions than objects, or as many, and the size stays simple.
    count = columns if columns <= rows else rows
    return cost.new_empty(count, dtype=torch.int64), cost.new_empty(count, dtype=torch.int64)
