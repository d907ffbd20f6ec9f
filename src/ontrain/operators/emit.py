"""Emitting operators, as types: the values of a graph, and what makes nodes of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol, overload

import numpy as np
import onnx_ir as ir

__all__ = ["Attribute", "Constant", "Emit", "Emitter", "Operand", "Several", "Value", "each"]

Constant = np.ndarray[Any, Any] | np.generic | bool | int | float | Sequence[int] | Sequence[float]
"""What an emitter makes a constant of."""
Operand = ir.Value | Constant | None
"""What an emitter takes as an input: a value, a constant, or None for an input that is left out."""
Attribute = (
    int | float | str | bytes | Sequence[int] | Sequence[float] | Sequence[str] | ir.TensorProtocol | ir.Graph
    | ir.DataType | ir.Attr | None
)  # fmt: skip
"""What an emitter takes as an attribute: None for one that is left out."""

if TYPE_CHECKING:

    class Value(ir.Value):
        """A value whose dtype and shape are known, as all are that are emitted. When code runs, it is an `ir.Value`."""

        @property
        def dtype(self) -> ir.DataType:
            """Its dtype, which may be set anew."""

        @dtype.setter
        def dtype(self, dtype: ir.DataType | None) -> None: ...

        @property
        def shape(self) -> ir.Shape:
            """Its shape, which may be set anew."""

        @shape.setter
        def shape(self, shape: ir.ShapeProtocol | None) -> None: ...
        def __add__(self, other: Operand, /) -> Value: ...
        def __radd__(self, other: Operand, /) -> Value: ...
        def __sub__(self, other: Operand, /) -> Value: ...
        def __rsub__(self, other: Operand, /) -> Value: ...
        def __mul__(self, other: Operand, /) -> Value: ...
        def __rmul__(self, other: Operand, /) -> Value: ...
        def __truediv__(self, other: Operand, /) -> Value: ...
        def __rtruediv__(self, other: Operand, /) -> Value: ...
        def __neg__(self) -> Value: ...

else:
    Value = ir.Value

Several = Literal[2, 3, 4, 5, 6, 7, 8]
"""Numbers of outputs that come as a tuple. Where the number is computed, the result may be one value or a tuple."""


class Emit(Protocol):
    """Emits one operator, as `op.MatMul` does: returns the value of its output, or a tuple of several."""

    @overload
    def __call__(self, *operands: Operand, outputs: Literal[1] = 1, **attributes: Attribute) -> Value: ...
    @overload
    def __call__(self, *operands: Operand, outputs: Several, **attributes: Attribute) -> tuple[Value, ...]: ...
    @overload
    def __call__(self, *operands: Operand, outputs: int, **attributes: Attribute) -> Value | tuple[Value, ...]: ...


class Emitter(Protocol):
    """Emits operators into a graph, as `op.MatMul(a, b)` or `op.Split(x, outputs=3)`."""

    @overload
    def composite(
        self, op_type: str, *operands: Operand, outputs: Literal[1] = 1, **attributes: Attribute
    ) -> Value: ...
    @overload
    def composite(
        self, op_type: str, *operands: Operand, outputs: Several, **attributes: Attribute
    ) -> tuple[Value, ...]: ...
    @overload
    def composite(
        self, op_type: str, *operands: Operand, outputs: int, **attributes: Attribute
    ) -> Value | tuple[Value, ...]: ...

    def const(self, value: Constant, dtype: ir.DataType | None = None) -> Value:
        """Return a constant."""

    def fresh(self, wish: str) -> str:
        """Return a name that no value of the graph has."""

    def __getattr__(self, op_type: str) -> Emit: ...


def each(outputs: Value | tuple[Value, ...]) -> tuple[Value, ...]:
    """Return the outputs of a node, of which there may be only one, as a tuple."""
    return outputs if isinstance(outputs, tuple) else (outputs,)
