"""The table of kernels that steps are run by."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir
import torch

from ontrain.inference.stepwise.values import Value
from ontrain.operators import holds_programs, record_of
from ontrain.providers.torch import program_operator

__all__ = ["Call", "Kernel", "UnfitError", "find_kernel", "is_control", "kernel", "runs_as_step"]


def is_control(node: ir.Node) -> bool:
    """Whether the graphs of a node are programs of their own."""
    return holds_programs(node) or (not node.domain and node.op_type == "SequenceMap")


@dataclass(frozen=True)
class Call:
    """One run of a node: attributes as Python values, inputs with None for those left out."""

    node: ir.Node
    attributes: Mapping[str, Any]
    inputs: Sequence[Value]
    device: torch.device

    def input(self, at: int) -> Value:
        """Return an input; None if it is left out."""
        return self.inputs[at] if at < len(self.inputs) else None

    def number(self, at: int, default: int = 0) -> int:
        """Return an input of one element as a whole number."""
        value = self.input(at)
        return default if value is None else int(value.reshape(()).item())

    def numbers(self, at: int) -> list[int] | None:
        """Return an input as a list of whole numbers; None if it is left out."""
        value = self.input(at)
        return None if value is None else [int(number) for number in value.reshape(-1).tolist()]


class UnfitError(Exception):
    """A kernel is not for such inputs; onnx's evaluator may be."""


@dataclass(frozen=True)
class Kernel:
    """How an operator runs as a step.

    Attributes:
        run: gives one value an output.
        text: whether it takes strings; onnx's evaluator does elsewhere.
        always: whether it never is part of a plan, by the node; else only where a size is computed from data, or for
            text.
    """

    run: Callable[[Call], Sequence[Value]]
    text: bool
    always: Callable[[ir.Node], bool]


_table: dict[tuple[str, str], Kernel] = {}


def kernel(
    *op_types: str, domain: str = "", text: bool = False, always: bool | Callable[[ir.Node], bool] = True
) -> Callable[[Callable[[Call], Sequence[Value]]], Callable[[Call], Sequence[Value]]]:
    """Register the decorated function as the kernel of operators; see `Kernel`."""
    when = always if callable(always) else lambda _: always

    def register(run: Callable[[Call], Sequence[Value]]) -> Callable[[Call], Sequence[Value]]:
        _table.update({(domain, op_type): Kernel(run, text, when) for op_type in op_types})
        return run

    return register


def find_kernel(node: ir.Node) -> Kernel | None:
    """Return the kernel of a node's operator, None if it has none."""
    known = _table.get((node.domain, node.op_type))
    operator = program_operator(node) if known is None and record_of(node).foreign else None
    return known if operator is None else Kernel(_run_operator, text=False, always=lambda _: not operator.has_shape)


def _run_operator(call: Call) -> Sequence[Value]:
    operator = program_operator(call.node)
    assert operator is not None
    return operator.run(call.node, call.inputs)


def runs_as_step(node: ir.Node) -> bool:
    """Whether a node runs as a step wherever it stands in a graph that no plan holds whole."""
    known = find_kernel(node)
    return is_control(node) or (known is not None and known.always(node))
