"""Values inside a module that somebody outside wants to see: marked while it is traced, outputs of the graph then."""

from __future__ import annotations

import threading
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import onnx_ir as ir
import torch

from ontrain.errors import CaptureError
from ontrain.graph import source_of, subgraphs

__all__ = [
    "INSPECTED",
    "Inspected",
    "Mark",
    "Observer",
    "inspected_outputs",
    "mark",
    "numbered",
    "recording",
    "restart",
]

INSPECTED = "ontrain.inspected"
"""Metadata key of a graph output that is a marked value; its value is the mark's number."""
_INNER = {"If": "torch.cond", "Loop": "torch.while_loop"}


class Observer(Protocol):
    """Who gets the marked values of each call of a captured module."""

    def take_values(self, values: Sequence[tuple[Mark, torch.Tensor]]) -> int:
        """Take what a forward computed, in the order of execution; return the number of the step."""
        ...

    def take_gradients(self, step: int, gradients: Sequence[tuple[Mark, torch.Tensor]]) -> None:
        """Take the gradients of that step's values, the last one computed first."""
        ...


@dataclass(frozen=True)
class Mark:
    """A place in a module.

    Attributes:
        name: of the value, unique among an observer's.
        depth: of the module that computes it; the outermost has 1, a place without a module -1.
        observer: who wants to see it.
    """

    name: str
    depth: int
    observer: Observer


@dataclass(frozen=True)
class Inspected:
    """The marks of a captured module, by the graph outputs that hold their values, in the order of execution."""

    marks: Mapping[str, Mark] = field(default_factory=dict)

    def hand_out(self, outputs: Mapping[str, torch.Tensor]) -> list[tuple[Observer, int]]:
        """Give observers what a forward computed; return the step of each."""
        return [
            (observer, observer.take_values([(m, outputs[n]) for n, m in self.marks.items() if m.observer is observer]))
            for observer in self._observers()
        ]

    def hand_back(self, steps: Sequence[tuple[Observer, int]], gradients: Mapping[str, torch.Tensor]) -> None:
        """Give observers the gradients of the values that got one."""
        for observer, step in steps:
            own = [(m, gradients[n]) for n, m in self.marks.items() if m.observer is observer and n in gradients]
            observer.take_gradients(step, own[::-1])

    def _observers(self) -> list[Observer]:
        return list({id(mark.observer): mark.observer for mark in self.marks.values()}.values())


@torch.library.custom_op("ontrain::inspect", mutates_args=())
def _inspect(x: torch.Tensor, name: str) -> torch.Tensor:
    return x.clone()


@_inspect.register_fake
def _(x: torch.Tensor, name: str) -> torch.Tensor:
    return torch.empty_like(x)


def _same(_: Any, dy: torch.Tensor) -> tuple[torch.Tensor, None]:
    return dy, None


_inspect.register_autograd(_same)
# A value that nobody else reads is still to be seen.
torch.fx.node.has_side_effect(torch.ops.ontrain.inspect.default)

_own = threading.local()


class _Record:
    def __init__(self) -> None:
        self.marks: list[Mark] = []
        self.calls: Counter[tuple[int, str]] = Counter()


@contextmanager
def recording() -> Iterator[list[Mark]]:
    """Let marks be made by the trace that the calling thread makes inside; yields those of its last run."""
    _own.record = record = _Record()
    try:
        yield record.marks
    finally:
        _own.record = None


def restart() -> None:
    """Forget the marks of an earlier run of the forward that is traced."""
    record = getattr(_own, "record", None)
    if record is not None:
        record.marks.clear()
        record.calls.clear()


def mark(tensor: torch.Tensor, name: str, depth: int, observer: Observer) -> torch.Tensor:
    """Return the tensor as a value that is handed to an observer after each call of the graph.

    Args:
        name: of the place; a second value of the same place gets "_call2" behind it.

    Raises:
        CaptureError: the graph that is traced is not one that is run with observers.
    """
    record: _Record | None = getattr(_own, "record", None)
    if record is None:
        raise CaptureError(
            f"the activation {name!r} is to be inspected in a graph that hands nothing out",
            reason="an ORTModule gives inspected values to their subscribers, a trainer or an export does not",
            way_out="wrap the module in ontrain.training.ortmodule.ORTModule, or unsubscribe",
        )
    record.calls[id(observer), name] += 1
    number = len(record.marks)
    record.marks.append(Mark(numbered(name, record.calls[id(observer), name]), depth, observer))
    marked: torch.Tensor = torch.ops.ontrain.inspect(tensor, str(number))
    return marked


def numbered(name: str, call: int) -> str:
    """Return the name of a place's value in the so-manieth call of it within one forward."""
    return name if call == 1 else f"{name}_call{call}"


def inspected_outputs(model: ir.Model, marks: Sequence[Mark]) -> Inspected:
    """Return which outputs hold the values of which marks, in the order in which forward came by them."""
    outputs = [value for value in model.graph.outputs if INSPECTED in value.metadata_props]
    inner = next((node for node in model.graph if subgraphs(node)), None) if marks else None
    if inner is not None:
        warnings.warn(
            f"values inside {_INNER.get(inner.op_type, inner.op_type)} ({source_of(inner)}) are not inspected: they "
            "are computed or not, or many times; return them from it to see them",
            stacklevel=2,
        )
    numbers = {int(value.metadata_props[INSPECTED]): str(value.name) for value in outputs}
    return Inspected({numbers[number]: marks[number] for number in sorted(numbers)})
