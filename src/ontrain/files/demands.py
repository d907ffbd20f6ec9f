"""Sizes and ranks of operands that stock onnxruntime takes for granted: its process ends where they are others.

Found by running the cases of onnx's suite, and cases of onnxruntime's own operators, with axes of size zero and with
operands of another rank. Other operators refuse such operands, or give results without elements.

A Scan moves the axis that it goes over to the front, and the axis of its results to its place. For both onnxruntime
divides by the number of elements behind the axis.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import onnx

__all__ = ["DEMANDING", "OPTIONAL_OPERANDS", "Demand", "demands_of", "stacked"]


@dataclass(frozen=True)
class Demand:
    """What an operand has to be.

    Attributes:
        operand: the position among the node's inputs.
        axes: whose sizes may not be zero; none of the operand's where it is None.
        since: the sizes from this axis on may not be zero, in place of `axes`.
        rank: how many axes it has at least; any number where it is None.
        is_number: whether it is a number that may not be zero.
    """

    operand: int
    axes: tuple[int, ...] | None = None
    since: int | None = None
    rank: int | None = None
    is_number: bool = False

    def holds(self, shape: Sequence[int]) -> bool:
        """Return whether an operand of this shape is sure to meet the demand."""
        if self.is_number:
            return False
        if self.rank is not None:
            return len(shape) >= self.rank
        axes: Sequence[int] = range(self.since or 0, len(shape)) if self.axes is None else self.axes
        return all(-len(shape) <= axis < len(shape) and shape[axis] > 0 for axis in axes)


_STANDARD, _MICROSOFT = "", "com.microsoft"
_BATCH = (1,)
"""The axis of the batch in recurrent layers."""
_DEMANDS: dict[tuple[str, str], tuple[Demand, ...]] = {
    (_STANDARD, "Attention"): (Demand(1, (1,)),),
    (_STANDARD, "ConvInteger"): (Demand(0, rank=3),),
    (_STANDARD, "ConvTranspose"): (Demand(0, (2, 3, 4)),),
    (_STANDARD, "GRU"): (Demand(0),),
    (_STANDARD, "LSTM"): (Demand(0, _BATCH),),
    (_STANDARD, "STFT"): (Demand(0, rank=2), Demand(2), Demand(3, is_number=True)),
    (_MICROSOFT, "CropAndResize"): (Demand(0, rank=4), Demand(1, rank=2)),
    (_MICROSOFT, "DynamicQuantizeLSTM"): (Demand(0, _BATCH),),
    (_MICROSOFT, "Inverse"): (Demand(0),),
    (_MICROSOFT, "LinearAttention"): (Demand(0, (2,)), Demand(1, (2,))),
    (_MICROSOFT, "MoE"): (Demand(0, (-1,)),),
    (_MICROSOFT, "MultiHeadAttention"): (Demand(2, (-1,)),),
    (_MICROSOFT, "QAttention"): (Demand(0, (0,)),),
    (_MICROSOFT, "QMoE"): (Demand(0, (-1,)),),
    (_MICROSOFT, "RotaryEmbedding"): (Demand(0, (-1,)),),
}
_SCAN = "Scan"
DEMANDING = (*{name.encode() for _, name in _DEMANDS}, _SCAN.encode())
"""Operators that a file must name to have demands."""

OPTIONAL_OPERANDS = ("LayerNormalization", "Max", "Min", "Sum", "Mean", "Einsum")
"""Operators whose kernels end the process only where an operand is left out."""


def demands_of(node: onnx.NodeProto, ranks: dict[str, int]) -> tuple[Demand, ...]:
    """Return what a node asks of its operands; `ranks` are those known of weights, by name."""
    domain = _STANDARD if node.domain == "ai.onnx" else node.domain
    if (domain, node.op_type) == (_STANDARD, _SCAN):
        return tuple(_scanned(node))
    demands = _DEMANDS.get((domain, node.op_type), ())
    stated = {attribute.name for attribute in node.attribute}
    if node.op_type == "Attention" and "kv_num_heads" in stated:
        return ()  # keys of rank 3, whose heads an attribute counts
    if node.op_type == "ConvTranspose" and len(node.input) > 1 and ranks.get(node.input[1], 5) != 5:
        return ()  # one and two dimensions are refused or come to nothing
    return tuple(demand for demand in demands if demand.operand < len(node.input) and node.input[demand.operand])


def _scanned(node: onnx.NodeProto) -> Iterator[Demand]:
    """What a Scan asks of the inputs that it goes over by another axis than the first."""
    states = _states(node)
    for at, axis in enumerate(_numbers(node, "scan_input_axes")):
        if axis and states + at < len(node.input):
            yield Demand(states + at, axes=tuple(range(axis, 0))) if axis < 0 else Demand(states + at, since=axis)


def stacked(node: onnx.NodeProto) -> Iterator[tuple[int, int]]:
    """Yield the outputs of a Scan's body that it stacks along another axis than the first: position, and axis."""
    states = _states(node)
    for at, axis in enumerate(_numbers(node, "scan_output_axes")):
        if axis:
            yield states + at, axis


def _states(node: onnx.NodeProto) -> int:
    """How many values a Scan carries from step to step."""
    scanned = next((attribute.i for attribute in node.attribute if attribute.name == "num_scan_inputs"), 0)
    return max(len(node.input) - scanned, 0)


def _numbers(node: onnx.NodeProto, name: str) -> Sequence[int]:
    return next((attribute.ints for attribute in node.attribute if attribute.name == name), ())
