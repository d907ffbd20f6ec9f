"""Python's and numpy's functions of one number, where forward gives them a size or a number read off a tensor.

scores / math.sqrt(x.shape[1])      →  the root of each size
np.sin(x.max().item())              →  the number of the batch at hand
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from ontrain.capture.autograd import traced_here
from ontrain.internals import substituted, wrapped

__all__ = ["functions_of_numbers"]

_KINDS = torch.SymInt, torch.SymFloat
_sqrt = math.sqrt


@contextmanager
def functions_of_numbers() -> Iterator[None]:
    """Let roots vary, and numpy's other functions take a number: they call its method of that name."""
    names = [(kind, name) for kind in _KINDS for name in _OF_NUMPY if not hasattr(kind, name)]
    methods = [(kind, name, _root if name == "sqrt" else _of_numpy(name)) for kind, name in names]
    with substituted([(math, "sqrt", _python_root)]), substituted(methods, new=True), wrapped(_WRITTEN):
        yield


def _root(number: Any) -> Any:
    return torch.sym_sqrt(torch.sym_float(number))


def _python_root(number: Any) -> Any:
    return _root(number) if isinstance(number, _KINDS) and traced_here() else _sqrt(number)


def _as_node(function: Callable[..., Any], own: Callable[..., Any]) -> Callable[..., Any]:
    """Have a function of numbers called by the program where the number is one of its values."""

    def written(number: Any, dtype: Any) -> Any:
        if not isinstance(number, torch.fx.Proxy):
            return own(number, dtype)
        return number.tracer.create_proxy("call_function", function, (number,), {})

    return written


def _of_numpy(name: str) -> Callable[[Any], Any]:
    function = getattr(np, name)
    return lambda number: function(float(number))


_ASSERTED = "torch.utils._sympy.reference.PythonReferenceAnalysis"
_WRITTEN: dict[str, Callable[[Any], Any]] = {
    f"{_ASSERTED}.int_truediv": lambda _: operator.truediv,
    f"{_ASSERTED}.floor_to_int": lambda own: _as_node(math.floor, own),
    f"{_ASSERTED}.ceil_to_int": lambda own: _as_node(math.ceil, own),
}
"""Functions in what torch asserts of numbers out of tensors, where it has some that its program cannot hold."""
_OF_NUMPY = (
    "arccos", "arccosh", "arcsin", "arcsinh", "arctan", "arctanh", "cbrt", "cos", "cosh", "deg2rad", "exp", "exp2",
    "expm1", "fabs", "log", "log10", "log1p", "log2", "rad2deg", "rint", "sin", "sinh", "sqrt", "tan", "tanh",
)  # fmt: skip
"""numpy's functions of one number that take an object by a method of it."""
