"""Evaluation of one node whose inputs are all known: shape arithmetic, masks of a batch's shape, constants."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np
import onnx_ir as ir
from onnx.reference import ReferenceEvaluator

from ontrain.graph.blame import blamed_on
from ontrain.graph.corrections import CORRECTIONS, divided
from ontrain.graph.infer import schema_of
from ontrain.graph.subgraphs import subgraphs

__all__ = ["RANDOM", "evaluate", "fills_kept", "foldable"]

# A folded value lives as long as its plan; beyond this size computing it each step is the better bargain.
_LIMIT_BYTES = 16 << 20
RANDOM = frozenset(
    {"Dropout", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Bernoulli", "Multinomial"}
)

# onnx's evaluator lacks these, or has them in part.
_NOT_EVALUATED = frozenset({"GlobalLpPool", "GridSample", "LpPool", "MaxRoiPool", "SimplifiedLayerNormalization"})


_FILLS = frozenset({"ConstantOfShape", "Expand"})
_fills_kept: ContextVar[bool] = ContextVar("_fills_kept", default=False)


@contextmanager
def fills_kept() -> Iterator[None]:
    """Let tensors that repeat a value stay nodes inside the block, whatever their size; shapes are folded still."""
    token = _fills_kept.set(True)
    try:
        yield
    finally:
        _fills_kept.reset(token)


def foldable(node: ir.Node) -> bool:
    """Whether every input of `node` is constant and evaluating it once is right and affordable."""
    if _fills_kept.get() and node.op_type in _FILLS and not _is_shape(node.outputs[0]):
        return False
    if node.domain or node.op_type in _NOT_EVALUATED or node.op_type in RANDOM:
        return False
    if subgraphs(node) or node.graph is None and not node.outputs:
        return False
    if any(value is not None and value.const_value is None for value in node.inputs):
        return False
    size = 0
    for value in node.outputs:
        if value.shape is None or not value.shape.is_static() or value.dtype is None:
            return _computed_bytes(node) <= _LIMIT_BYTES
        size += math.prod(d for d in value.shape if isinstance(d, int)) * math.ceil(value.dtype.itemsize)
    return size <= _LIMIT_BYTES


def _is_shape(value: ir.Value) -> bool:
    return value.dtype == ir.DataType.INT64 and value.shape is not None and len(value.shape) <= 1


def _computed_bytes(node: ir.Node) -> float:
    """Bytes of a result whose shape is told by the operands' values, which inference may not have looked at."""
    operands = [v.const_value.numpy() for v in node.inputs if v is not None and v.const_value is not None]
    if node.op_type == "Range" and len(operands) == 3 and all(o.size == 1 for o in operands):
        start, stop, step = (float(o.reshape(())) for o in operands)
        count = (stop - start) / step if step else math.inf
    elif node.op_type in ("ConstantOfShape", "Expand") and operands and operands[-1].ndim == 1:
        lengths = [int(d) for d in operands[-1]]
        # Each operand broadcasts to the other: the product bounds the result.
        count = math.prod(max(d, 1) for d in lengths) * (operands[0].size if node.op_type == "Expand" else 1)
    else:
        return math.inf
    return count * 8 if math.isfinite(count) else math.inf


def evaluate(node: ir.Node) -> list[np.ndarray[Any, Any]]:
    """Compute the outputs of a node whose inputs all have a `const_value`.

    Raises:
        GraphError: the operator refuses these values.
    """
    with blamed_on(node, "a constant cannot be computed"):
        return _evaluate(node)


def _evaluate(node: ir.Node) -> list[np.ndarray[Any, Any]]:
    inputs = [None if v is None or v.const_value is None else v.const_value.numpy() for v in node.inputs]
    fast = _NUMPY.get(node.op_type)
    if fast is not None:
        attributes = {name: attr.value for name, attr in node.attributes.items()}
        result = fast(attributes, *inputs)
        if result is not None:
            return [np.asarray(result)]
    return _with_reference(node, inputs)


def _with_reference(node: ir.Node, inputs: list[np.ndarray[Any, Any] | None]) -> list[np.ndarray[Any, Any]]:
    clone = ir.Node(
        node.domain,
        node.op_type,
        [None if v is None else ir.Value(name=f"i{i}") for i, v in enumerate(inputs)],
        node.attributes.values(),
        outputs=[ir.Value(name=f"o{i}") for i in range(len(node.outputs))],
    )
    feeds = {f"i{i}": v for i, v in enumerate(inputs) if v is not None}
    try:
        found = ReferenceEvaluator(ir.to_proto(clone), new_ops=CORRECTIONS).run(None, feeds)
    except AssertionError as error:  # what it expects of operands it states so
        raise ValueError(str(error) or "onnx's evaluator does not take such operands") from error
    # A reversed slice comes as a view with a negative stride, which torch does not read.
    return [np.array(v, order="C") for v in found]


# The operators that shape arithmetic and attention masks consist of. onnx's evaluator is right for all others,
# but takes half a millisecond a node, and a 12-layer model has hundreds of these.
Attributes = Mapping[str, Any]


def _gather(a: Attributes, x: Any, i: Any) -> Any:
    return np.take(x, i, axis=a.get("axis", 0))


def _slice(a: Attributes, x: Any, starts: Any, ends: Any, axes: Any = None, steps: Any = None) -> Any:
    index = [slice(None)] * x.ndim
    for i, start in enumerate(starts):
        axis = int(axes[i]) if axes is not None else i
        step = int(steps[i]) if steps is not None else 1
        if step < 0:
            return None
        index[axis] = slice(int(start), int(ends[i]), step)
    return x[tuple(index)]


def _unsqueeze(a: Attributes, x: Any, axes: Any) -> Any:
    return np.expand_dims(x, tuple(int(i) for i in axes))


def _squeeze(a: Attributes, x: Any, axes: Any = None) -> Any:
    return np.squeeze(x, None if axes is None else tuple(int(i) for i in axes))


def _cast(a: Attributes, x: Any) -> Any:
    with np.errstate(invalid="ignore"):  # a mask may cast log(0), whose entries it never uses
        return x.astype(ir.DataType(a["to"]).numpy())


def _reshape(a: Attributes, x: Any, shape: Any) -> Any:
    dims = [x.shape[i] if d == 0 and not a.get("allowzero") else int(d) for i, d in enumerate(shape)]
    return x.reshape(dims)


def _div(a: Attributes, x: Any, y: Any) -> Any:
    return divided(x, y)


def _constant_of_shape(a: Attributes, shape: Any) -> Any:
    value = a["value"].numpy().reshape(()) if "value" in a else np.float32(0)
    return np.full(tuple(int(d) for d in shape), value)


def _expand(a: Attributes, x: Any, shape: Any) -> Any:
    return np.broadcast_to(x, np.broadcast_shapes(x.shape, tuple(int(d) for d in shape))).copy()


_NUMPY: dict[str, Callable[..., Any]] = {
    "Add": lambda a, x, y: x + y,
    "Sub": lambda a, x, y: x - y,
    "Mul": lambda a, x, y: x * y,
    "Div": _div,
    "Neg": lambda a, x: -x,
    "And": lambda a, x, y: x & y,
    "Or": lambda a, x, y: x | y,
    "Not": lambda a, x: ~x,
    "Equal": lambda a, x, y: x == y,
    "Less": lambda a, x, y: x < y,
    "LessOrEqual": lambda a, x, y: x <= y,
    "Greater": lambda a, x, y: x > y,
    "GreaterOrEqual": lambda a, x, y: x >= y,
    "Where": lambda a, c, x, y: np.where(c, x, y),
    "Identity": lambda a, x: x,
    "Range": lambda a, start, stop, step: np.arange(start, stop, step, dtype=start.dtype),
    "Concat": lambda a, *x: np.concatenate(x, axis=a["axis"]),
    "Gather": _gather,
    "Slice": _slice,
    "Unsqueeze": _unsqueeze,
    "Squeeze": _squeeze,
    "Cast": _cast,
    "Reshape": _reshape,
    "Transpose": lambda a, x: np.transpose(x, a.get("perm")),
    "Expand": _expand,
    "ConstantOfShape": _constant_of_shape,
}
assert all(schema_of(op) is not None for op in _NUMPY)
