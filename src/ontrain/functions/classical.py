"""The operators of ai.onnx.ml that are plain arithmetic: scaling, norms, linear regression.

Source: https://onnx.ai/onnx/operators/index_classes.html
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from ontrain.functions.registry import NoBodyError, composite

__all__: list[str] = []

DOMAIN_ML = "ai.onnx.ml"


def _single(inputs: list[Any], **_: Any) -> list[tuple[ir.DataType, ir.Shape]]:
    return [(ir.DataType.FLOAT, inputs[0].shape)]


def _floats(values: Sequence[float]) -> np.ndarray[Any, Any]:
    return np.asarray(values, np.float32)


@composite("Scaler", domain=DOMAIN_ML, infer=_single)
def scaler(op: Any, x: Any, *, offset: Sequence[float] = (0.0,), scale: Sequence[float] = (1.0,)) -> Any:
    """(x − offset) · scale, each one number or one per feature."""
    return (op.Cast(x, to=ir.DataType.FLOAT) - op.const(_floats(offset))) * op.const(_floats(scale))


@composite("Normalizer", domain=DOMAIN_ML, infer=_single)
def normalizer(op: Any, x: Any, *, norm: str = "MAX") -> Any:
    """Rows divided by their largest element, by the sum of absolute values (L1) or by the length (L2)."""
    wide = op.Cast(x, to=ir.DataType.FLOAT)
    function = {"MAX": op.ReduceMax, "L1": op.ReduceL1, "L2": op.ReduceL2}[norm]
    return wide / function(wide, [-1], keepdims=1)


def _regressor_types(inputs: list[Any], *, targets: int = 1, **_: Any) -> list[tuple[ir.DataType, ir.Shape]]:
    return [(ir.DataType.FLOAT, ir.Shape([inputs[0].shape[0], targets]))]


@composite("LinearRegressor", domain=DOMAIN_ML, infer=_regressor_types)
def linear_regressor(
    op: Any, x: Any,
    *, coefficients: Sequence[float] = (), intercepts: Sequence[float] = (), targets: int = 1,
    post_transform: str = "NONE",
) -> Any:  # fmt: skip
    """x times the coefficients [targets, features], plus the intercepts."""
    if post_transform != "NONE":
        raise NoBodyError(f"post_transform {post_transform}", "apply the transform with a standard operator")
    weight = np.ascontiguousarray(_floats(coefficients).reshape(targets, -1).T)
    y = op.MatMul(op.Cast(x, to=ir.DataType.FLOAT), op.const(weight))
    return y + op.const(_floats(intercepts)) if len(intercepts) else y
