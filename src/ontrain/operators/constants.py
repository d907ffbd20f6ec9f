"""Tensors out of nothing but sizes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx_ir as ir

from ontrain.operators.record import WHEREVER, Smallest, Stock, define

__all__: list[str] = []


def _constant_of_shape(a: Mapping[str, Any], shape: Any) -> Any:
    value = a["value"].numpy().reshape(()) if "value" in a else np.float32(0)
    return np.full(tuple(int(d) for d in shape), value)


define(
    "Constant",
    computes=False,
    written=True,
    zero_gradient=WHEREVER,
    smallest=Smallest({"value": ir.tensor([1.0], dtype=ir.DataType.FLOAT)}),
    stock=Stock.COMPARED,
)
define(
    "ConstantOfShape",
    settings=(0,),
    fills=True,
    evaluate=_constant_of_shape,
    zero_gradient=WHEREVER,
    stock=Stock.COMPARED,
)
define("EyeLike", zero_gradient=WHEREVER, stock=Stock.COMPARED)
define(
    "Range",
    settings=(0, 1, 2),
    evaluate=lambda a, start, stop, step: np.arange(start, stop, step, dtype=start.dtype),
    zero_gradient=WHEREVER,
    stock=Stock.COMPARED,
)
