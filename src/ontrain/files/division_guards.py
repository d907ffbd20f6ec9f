"""Guards of divisions of integers: by zero, and of the least integer by minus one."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from ontrain.files.guard_errors import DIVISION
from ontrain.files.guard_nodes import KIND, GuardNodes

__all__ = ["INTEGERS", "divides_all", "guard_division"]

INTEGERS = frozenset({
    KIND.INT8, KIND.INT16, KIND.INT32, KIND.INT64, KIND.UINT8, KIND.UINT16, KIND.UINT32, KIND.UINT64,
})  # fmt: skip
_LEAST: dict[int, int] = {KIND.INT32: -(2**31), KIND.INT64: -(2**63)}


def guard_division(node: onnx.NodeProto, kind: int, divisor: Any, guards: GuardNodes) -> bool:
    """Guard a Div or Mod of numbers of this type; return whether it needs one.

    Args:
        node: changed in place.
        kind: the element type of its operands.
        divisor: the constant that it divides by, a TensorProto; None for what is computed.
        guards: takes the nodes that come before it.
    """
    if kind not in INTEGERS or divides_all(divisor):
        return False
    a, b = node.input[0], node.input[1]
    # onnxruntime compares few types; of the wide ones all.
    wide = b if kind in _LEAST else guards.emit("Cast", [b], to=KIND.INT64)
    compared = kind if kind in _LEAST else KIND.INT64
    bad = guards.emit("Equal", [wide, guards.constant(np.array(0), compared)])
    if kind in _LEAST:
        negated = guards.emit("Equal", [b, guards.constant(np.array(-1), kind)])
        if node.op_type == "Div":
            least = guards.emit("Equal", [a, guards.constant(np.array(_LEAST[kind]), kind)])
            bad = guards.emit("Or", [bad, guards.emit("And", [negated, least])])
        else:
            # Nothing is left over by one as by minus one.
            b = guards.emit("Where", [negated, guards.constant(np.array(1), kind), b])
    wrong = guards.emit("Cast", [guards.flat(bad)], to=KIND.INT32)
    # There may be no division at all, and nothing is the greatest of nothing.
    wrong = guards.emit("Concat", [wrong, guards.constant(np.zeros(1), KIND.INT32)], axis=0)
    index = guards.emit("Cast", [guards.emit("ReduceMax", [wrong], keepdims=0)], to=KIND.INT64)
    called = f"{DIVISION} before {node.op_type} {node.name or node.output[0]}"
    node.input[1] = guards.emit("Gather", [guards.row(b), index], called=called)
    return True


def divides_all(tensor: onnx.TensorProto | None) -> bool:
    """Return whether a constant divisor has neither zero nor minus one in it."""
    if tensor is None or tensor.data_location == KIND.EXTERNAL:
        return False
    try:
        array = numpy_helper.to_array(tensor)
    except (ValueError, TypeError):
        return False
    return bool(np.all(array != 0) and np.all(array != -1))
