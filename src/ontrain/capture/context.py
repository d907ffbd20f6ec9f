"""The builder that translations work with: the graph's builder plus what torch knows about the current node."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar, cast

import numpy as np
import onnx_ir as ir
import torch
from torch import fx

from ontrain.capture.source import node_text, source_line
from ontrain.capture.symbols import Symbols
from ontrain.capture.ways_out import BROKEN
from ontrain.errors import CaptureError
from ontrain.graph import Builder, is_float, is_random
from ontrain.operators import HALVES, Value
from ontrain.sizes import Size

__all__ = ["AtenBuilder", "Dim", "Scalar", "dtype_of", "repeated_constant"]

Dim = int | Size
Scalar = bool | int | float | Size
"""A number among the arguments of an operator, or a size that varies."""
Made = TypeVar("Made")

_DTYPES = {
    torch.float32: ir.DataType.FLOAT,
    torch.float64: ir.DataType.DOUBLE,
    torch.float16: ir.DataType.FLOAT16,
    torch.bfloat16: ir.DataType.BFLOAT16,
    torch.int64: ir.DataType.INT64,
    torch.int32: ir.DataType.INT32,
    torch.int16: ir.DataType.INT16,
    torch.int8: ir.DataType.INT8,
    torch.uint8: ir.DataType.UINT8,
    torch.bool: ir.DataType.BOOL,
}


def repeated_constant(value: ir.Value) -> np.ndarray[Any, Any] | None:
    """Return the numbers of a constant, or of the constant that a value repeats; None of what is computed."""
    producer = value.producer()
    source = producer.inputs[0] if producer is not None and producer.op_type == "Expand" else value
    return None if source is None or source.const_value is None else np.asarray(source.const_value.numpy())


def dtype_of(dtype: torch.dtype) -> ir.DataType:
    """Return ONNX's name of a torch dtype.

    Raises:
        CaptureError: graphs have no such dtype.
    """
    if dtype not in _DTYPES:
        raise CaptureError(f"{dtype} has no counterpart in a graph", way_out="use a real float or integer dtype")
    return _DTYPES[dtype]


class AtenBuilder(Builder):
    """A `Builder` for one exported program; `node` is the FX node that is being translated."""

    def __init__(self, graph: ir.Graph, symbols: Symbols, *, parent: AtenBuilder | None = None) -> None:
        super().__init__(graph, parent=parent)
        self.symbols = symbols
        self.node: fx.Node
        self.trained: set[ir.Value] = set()
        self.environment: dict[fx.Node, Any] = {}
        self.reseeded = False
        """Whether forward has set torch's generator."""
        self.is_inner = parent is not None
        self.masks: dict[int, tuple[Value, torch.Size, Value | None]] = {}
        """Masks that forward draws by numpy: the graph's input, its shape, and what the draw depends on."""
        self._memo: dict[Hashable, Any] = {}
        self._single = False

    def inside(self, graph: ir.Graph) -> AtenBuilder:
        """Return a builder of a graph inside this one, which may read this one's values and not the other way."""
        inner = AtenBuilder(graph, self.symbols.inside(), parent=self)
        inner.trained, inner._memo, inner.reseeded = self.trained, dict(self._memo), self.reseeded
        return inner

    def add(self, node: ir.Node, names: Sequence[str | None] = ()) -> Value | tuple[Value, ...]:
        """Append a node, noting whether its outputs depend on a parameter.

        Raises:
            CaptureError: it draws random numbers, and forward has set torch's generator.
        """
        if self.reseeded and is_random(node):
            raise self.refuse(
                "forward draws random numbers behind a line that sets torch's generator",
                "a graph draws other numbers in each step and at each place",
                "leave the seed to the training loop; set the dropout of a layer to 0 that computes its forward again; "
                f"or {BROKEN}",
            )
        outputs = super().add(node, names)
        if any(value in self.trained for value in node.inputs if value is not None):
            self.trained.update(outputs if isinstance(outputs, tuple) else (outputs,))
        return outputs

    @property
    def val(self) -> torch.Tensor:
        """The result of the current node as torch sees it: a tensor without data (the first of several)."""
        results = self.node.meta["val"]
        first: torch.Tensor = results[0] if isinstance(results, tuple | list) else results
        return first

    @property
    def dtype(self) -> ir.DataType:
        """The dtype of the current node's result; of its parts, if it is complex."""
        dtype = dtype_of(self.val.dtype.to_real() if self.val.dtype.is_complex else self.val.dtype)
        return ir.DataType.FLOAT if self._single and dtype in HALVES else dtype

    @contextmanager
    def in_single(self) -> Iterator[None]:
        """Have the current node computed in single precision where its result is a half."""
        before, self._single = self._single, True
        try:
            yield
        finally:
            self._single = before

    @property
    def shape(self) -> list[Dim]:
        """The shape of the current node's result."""
        return self.shape_of_val(self.val)

    def shape_of_val(self, val: torch.Tensor) -> list[Dim]:
        """Return the shape of a tensor without data, with sizes that vary under the user's names."""
        return [self.symbols.size(length) for length in val.shape]

    def argument(self, index: int, name: str = "") -> Any:
        """Return an argument of the current node as torch sees it: data-less tensor, or plain value."""
        argument = self.node.args[index] if index < len(self.node.args) else self.node.kwargs.get(name)
        return argument.meta["val"] if isinstance(argument, fx.Node) else argument

    def listed_shapes(self, index: int = 0) -> list[list[Dim]]:
        """Return the shapes of the tensors in an argument of the current node that is a list."""
        tensors: Any = self.node.args[index]
        return [self.shape_of_val(tensor.meta["val"]) for tensor in tensors if tensor is not None]

    def input_shape(self, index: int = 0) -> list[Dim]:
        """Return the shape of a tensor argument of the current node."""
        return self.shape_of_val(self.argument(index))

    def assign(self, target: Any, value: ir.Value) -> None:
        """Let later readers of an FX node (a buffer, a tensor changed in place) see `value`."""
        if isinstance(target, fx.Node):
            self.environment[target] = value

    def cast(self, value: ir.Value | Scalar, dtype: ir.DataType) -> Value:
        """Return a value, number or size as a value of `dtype`."""
        if isinstance(value, Size):
            value = self.scalar(value)
        if isinstance(value, ir.Value):
            return cast(Value, value) if value.dtype == dtype else self.Cast(value, to=dtype)
        return self.const(value, dtype)

    def constant_in(self, y: Value, *operands: Value | Scalar | None) -> Value:
        """Return y as autograd records it: a function of operands whose derivative by each of them is zero."""
        xs = [x for x in operands if isinstance(x, ir.Value) and x in self.trained and is_float(x)]
        return self.composite("ConstantIn", y, *xs) if xs and is_float(y) else y

    def scalar(self, size: Dim) -> Value:
        """Return a size as a 0-d int64 value."""
        if not isinstance(size, Size):
            return self.const(np.array(size, np.int64))
        return self.Squeeze(self.symbols.emit(self, size), [0])

    def sizes(self, items: Sequence[Dim]) -> list[int] | Value:
        """Return sizes as an operand: a list where all are numbers, else an int64 vector."""
        numbers = [int(item) for item in items if not isinstance(item, Size)]
        if len(numbers) == len(items):
            return numbers
        key = ("sizes", tuple(items))
        return self.memo(key, lambda: self._vector(items))

    def count(self, items: Sequence[Dim]) -> int | Value:
        """Return the product of sizes: a number, or a 0-d int64 value."""
        known = [int(item) for item in items if not isinstance(item, Size)]
        return math.prod(known) if len(known) == len(items) else self.ReduceProd(self.sizes(items), keepdims=0)

    def _vector(self, items: Sequence[Dim]) -> Value:
        parts: list[Value] = []
        run: list[int] = []
        for item in (*items, None):
            if isinstance(item, int):
                run.append(int(item))
                continue
            if run:
                parts.append(self.const(np.array(run, np.int64)))
                run = []
            if isinstance(item, Size):
                parts.append(self.symbols.emit(self, item))
        return parts[0] if len(parts) == 1 else self.Concat(*parts, axis=0)

    def memo(self, key: Hashable, make: Callable[[], Made]) -> Made:
        """Return what `make` made for this key, made once a graph."""
        if key not in self._memo:
            self._memo[key] = make()
        result: Made = self._memo[key]
        return result

    def typed(self, value: Value, shape: Sequence[Dim]) -> Value:
        """State the shape of a value where inference could not read it off a computed size."""
        if value.producer() is not None:
            value.shape = ir.Shape([str(size) if isinstance(size, Size) else int(size) for size in shape])
        return value

    def counted(self, size: Dim) -> Value:
        """Return 0, 1, … below a size, as int64."""
        return self.typed(self.Range(0, self.scalar(size), 1), [size])

    def reshape(self, x: Value, target: Sequence[Dim], before: Sequence[Dim]) -> Value:
        """Reshape x from the sizes `before` to `target`, with a constant target shape wherever one says it."""
        if list(target) == list(before):
            return x
        varying = [i for i, size in enumerate(target) if isinstance(size, Size)]
        if any(size == 0 for size in target):
            return self.typed(self.Reshape(x, self.sizes(target), allowzero=1), target)
        shape: list[Dim] = list(target)
        left = [i for i in varying if not (i < len(before) and before[i] == target[i])]
        if len(left) <= 1:
            shape = [0 if i in varying else size for i, size in enumerate(target)]
            if left:
                shape[left[0]] = -1
        return self.typed(self.Reshape(x, self.sizes(shape)), target)

    def expand(self, x: Value, target: Sequence[Dim], before: Sequence[Dim]) -> Value:
        """Broadcast x from the sizes `before` to `target`; sizes that stay are asked for as 1."""
        if list(target) == list(before):
            return x
        lead = len(target) - len(before)
        wanted: list[Dim] = [1 if i >= lead and before[i - lead] == size else size for i, size in enumerate(target)]
        return self.typed(self.Expand(x, self.sizes(wanted)), target)

    def refuse(self, problem: str, reason: str, way_out: str) -> CaptureError:
        """Return the error for an operator that is known but used in a way that has no translation."""
        return CaptureError(
            problem, node=node_text(self.node), source=source_line(self.node), reason=reason, way_out=way_out
        )
