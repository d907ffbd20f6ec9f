"""`int` and `float` in the files of a traced module: Python's own make a number of the capture of what varies.

x[:, : int(x.shape[1] * 0.7)]        →  as many as the size says
torch.full((n,), float(n))           →  the same
y * float(x.detach().abs().max())    →  the value in each step
"""

from __future__ import annotations

import builtins
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from ontrain.errors import CaptureError
from ontrain.internals import injected

__all__ = ["number_types", "took_number_type_for_dtype"]


class _Kind(type):
    """What the two have in common: they are equal to Python's, and torch's stand-ins are instances of theirs."""

    own: builtins.type
    stand_in: builtins.type

    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, cls.own | cls.stand_in)

    def __subclasscheck__(cls, kind: type) -> bool:
        return issubclass(kind, cls.own | cls.stand_in)

    def __eq__(cls, other: object) -> bool:
        return other is cls or other is cls.own or other is cls.stand_in

    def __hash__(cls) -> builtins.int:
        return hash(cls.own)


class _Whole(_Kind):
    """Makes `int(tensor)` a number that varies, where Python's own would have to know it, and sizes whole numbers."""

    own, stand_in = builtins.int, torch.SymInt

    def __call__(cls, value: Any = 0, *args: Any) -> Any:
        if isinstance(value, torch.SymInt):
            return value
        if isinstance(value, torch.SymFloat):
            return torch.sym_int(value)
        if isinstance(value, torch.Tensor) and not value.is_complex():
            # A whole number out of a fraction varies as one out of a tensor of whole numbers does.
            number: Any = (value.to(torch.int64) if value.is_floating_point() else value).item()
            return cls(number) if isinstance(number, torch.SymInt | torch.SymFloat) else builtins.int(number)
        return builtins.int(value, *args)


class _Fraction(_Kind):
    """Makes `float(size)` and `float(tensor)` numbers that vary."""

    own, stand_in = builtins.float, torch.SymFloat

    def __call__(cls, value: Any = 0.0) -> Any:
        if isinstance(value, torch.SymInt | torch.SymFloat):
            return torch.sym_float(value)
        if isinstance(value, torch.Tensor) and not value.is_complex():
            return cls(value.item())
        return builtins.float(value)


class _Int(builtins.int, metaclass=_Whole):
    """`int` in the files of a module's packages while it is traced."""


class _Float(builtins.float, metaclass=_Fraction):
    """`float` in the files of a module's packages while it is traced."""


for _kind in (_Int, _Float):
    _kind.__name__ = _kind.__qualname__ = _kind.own.__name__  # as `type(number).__name__` is


@contextmanager
def number_types(scopes: Collection[dict[str, Any]]) -> Iterator[dict[type, type]]:
    """Let `int(…)` and `float(…)` vary in files.

    Args:
        scopes: their globals.

    Yields:
        What stands for each of Python's types there.
    """
    with injected(scopes, "int", _Int), injected(scopes, "float", _Float):
        yield {int: _Int, float: _Float}


def took_number_type_for_dtype(error: CaptureError) -> bool:
    """Return whether an `int` or `float` of a trace was used as a dtype: torch and numpy know Python's own only."""
    cause = error.__cause__
    names = _Whole.__name__, _Fraction.__name__, "numpy.object_"
    return isinstance(cause, TypeError) and any(name in str(cause) for name in names)
