"""One numpy function an operator: kernel(attributes, *inputs) returns the output, or a tuple of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

Attributes = Mapping[str, Any]


def gemm(a: Attributes, x: Any, w: Any, bias: Any = 0.0) -> Any:
    x, w = x.T if a.get("transA") else x, w.T if a.get("transB") else w
    return a.get("alpha", 1.0) * (x @ w) + a.get("beta", 1.0) * bias


def reduce(function: Callable[..., Any]) -> Callable[..., Any]:
    def kernel(a: Attributes, x: Any, axes: Any = None) -> Any:
        none = axes is None or axes.size == 0
        if none and a.get("noop_with_empty_axes"):
            return x
        return function(x, axis=None if none else tuple(axes), keepdims=bool(a.get("keepdims", 1)))

    return kernel


def cast(a: Attributes, x: Any) -> Any:
    return x.astype({1: np.float32, 6: np.int32, 7: np.int64, 9: np.bool_, 11: np.float64}[a["to"]])


KERNELS: dict[str, Callable[..., Any]] = {
    "Abs": lambda a, x: np.abs(x),
    "Add": lambda a, x, y: x + y,
    "Cast": cast,
    "Div": lambda a, x, y: x / y,
    "Equal": lambda a, x, y: x == y,
    "Exp": lambda a, x: np.exp(x),
    "Flatten": lambda a, x: x.reshape(int(np.prod(x.shape[: a.get("axis", 1)])), -1),
    "Gemm": gemm,
    "Greater": lambda a, x, y: x > y,
    "Identity": lambda a, x: x,
    "IsInf": lambda a, x: np.isinf(x),
    "IsNaN": lambda a, x: np.isnan(x),
    "Log": lambda a, x: np.log(x),
    "MatMul": lambda a, x, y: x @ y,
    "Min": lambda a, *x: np.minimum.reduce(x),
    "Mul": lambda a, x, y: x * y,
    "Neg": lambda a, x: -x,
    "Not": lambda a, x: ~x,
    "Or": lambda a, x, y: x | y,
    "Reciprocal": lambda a, x: 1 / x,
    "ReduceMean": reduce(np.mean),
    "ReduceSum": reduce(np.sum),
    "ReduceSumSquare": reduce(lambda x, **how: np.square(x).sum(**how)),
    "Relu": lambda a, x: np.maximum(x, 0),
    "Expand": lambda a, x, shape: np.broadcast_to(x, np.broadcast_shapes(x.shape, tuple(shape))),
    "Reshape": lambda a, x, shape: x.reshape([x.shape[i] if d == 0 else d for i, d in enumerate(shape)]),
    "Sqrt": lambda a, x: np.sqrt(x),
    "Sub": lambda a, x, y: x - y,
    "Sum": lambda a, *x: np.add.reduce(x),
    "Tanh": lambda a, x: np.tanh(x),
    "Transpose": lambda a, x: np.transpose(x, a.get("perm")),
    "Where": lambda a, c, x, y: np.where(c, x, y),
}
