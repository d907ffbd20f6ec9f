"""What `type(x)`, `isinstance(n, float)` and `max(x)` say to a traced forward: what they say in eager PyTorch."""

from __future__ import annotations

import builtins
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Any

import torch
from torch import nn

from ontrain.capture.autograd import traced_here
from ontrain.capture.source import is_foreign, is_machinery
from ontrain.internals import FakeTensor, answering_class, injected, wrapped

__all__ = ["eager_types", "extremes_of_rows"]

_NUMBERS = ((torch.SymInt, int), (torch.SymFloat, float), (torch.SymBool, bool))


@contextmanager
def eager_types(scopes: Collection[dict[str, Any]], kinds: Mapping[type, type]) -> Iterator[None]:
    """Let `type(x) is torch.Tensor` hold in a traced forward, and `isinstance(x.shape[0], numbers.Integral)`.

    A trace has stand-ins of classes of their own. Where forward asks for the class, it would go another way than in
    eager PyTorch without a word. It asks by `type(x)`; or by `x.__class__`, which is also what Python looks at for
    `isinstance`, `case float():` and functions of `functools.singledispatch`.

    Args:
        scopes: globals of the module's files.
        kinds: what stands for `int` and `float` there.
    """
    files = [vars(file) for name, file in [*sys.modules.items()] if _sees_stand_ins(name, file)]
    stand_ins = FakeTensor, *(stand_in for stand_in, _ in _NUMBERS)
    with (
        injected(scopes, "type", _asked(kinds)),
        injected(files, "type", _asked({})),
        answering_class(dict.fromkeys(stand_ins, _class_of)),
    ):
        yield


def _sees_stand_ins(name: str, file: Any) -> bool:
    # A file may load others when it is asked for what it has.
    return not name.startswith(_OTHERS) and is_foreign(getattr(file, "__dict__", _NOTHING).get("__file__") or "<")


_NOTHING: dict[str, Any] = {}
_OTHERS = ("torch.", "onnx", "sympy", "numpy.", "ontrain.")
"""Beginnings of the names of files that see no stand-ins, or ought to know them as such."""
_INNER = ("onnx", "sympy", "mpmath")
"""Beginnings of the names of packages that know stand-ins as such."""


def _class_of(value: Any) -> type:
    """Return what forward finds as `value.__class__`, and torch, which knows stand-ins, finds as it is."""
    asking = sys._getframe(1)
    if not _asks_for_forward(asking) or not traced_here():
        return type(value)
    kind = _eager_type(value)
    return asking.f_globals.get(kind.__name__, kind) if kind is int or kind is float else kind


def _asks_for_forward(frame: FrameType | None) -> bool:
    """Whether a frame is the user's or a library's, or one of Python's own files that they call."""
    while frame is not None and not is_machinery(frame.f_code.co_filename):
        if is_foreign(frame.f_code.co_filename):
            return not str(frame.f_globals.get("__name__")).startswith(_INNER)
        frame = frame.f_back
    return False


def _asked(kinds: Mapping[type, type]) -> type:
    """Return a `type` whose answers are eager PyTorch's, for files in which these stand for Python's types."""

    class Asked(type):
        """Answers `type(x)`, and leaves `type(name, bases, namespace)` and `isinstance(c, type)` as they are."""

        def __call__(cls, *args: Any, **named: Any) -> Any:
            if cls is not Type:
                return super().__call__(*args, **named)
            if len(args) > 1:
                return builtins.type(*args, **named)
            answer = _eager_type(*args)
            return Type if answer is builtins.type else _stand_in(kinds, answer)

        def __instancecheck__(cls, value: object) -> bool:
            return isinstance(value, builtins.type) if cls is Type else super().__instancecheck__(value)

        def __subclasscheck__(cls, kind: type) -> bool:
            return issubclass(kind, builtins.type) if cls is Type else super().__subclasscheck__(kind)

        def __eq__(cls, other: object) -> bool:
            return other is cls or cls is Type and other is builtins.type

        def __hash__(cls) -> int:
            return hash(builtins.type) if cls is Type else super().__hash__()

    class Type(type, metaclass=Asked):
        """`type` in the files of a traced forward."""

    return Type


def _stand_in(kinds: Mapping[type, type], own: type) -> type:
    """What stands for a class, which need not have a hash."""
    return next((stand_in for kind, stand_in in kinds.items() if kind is own), own)


def _eager_type(value: Any) -> type:
    own = builtins.type(value)
    if own.__module__.startswith("torch._subclasses") and isinstance(value, torch.Tensor):
        return nn.Parameter if isinstance(value, nn.Parameter) else torch.Tensor
    return _number(own) or own


def _number(own: type) -> type | None:
    """What a stand-in of this class is a number of; a class need not have a hash."""
    return next((kind for stand_in, kind in _NUMBERS if own is stand_in), None)


@contextmanager
def extremes_of_rows() -> Iterator[None]:
    """Let Python's `max(lengths)` and `min(lengths)` take a vector: torch's exporter hands it to a function of two."""

    def over_rows(own: Callable[..., Any]) -> Callable[..., Any]:
        def extreme(*args: Any, real_callable: Any, tensor_callable: Any, **named: Any) -> Any:
            if len(args) == 1 and not named and isinstance(args[0], torch.Tensor):
                return _extreme(args[0], real_callable, tensor_callable is torch.maximum)
            return own(*args, real_callable=real_callable, tensor_callable=tensor_callable, **named)

        return extreme

    with wrapped({"torch._export.non_strict_utils._tensor_min_max": over_rows}):
        yield


def _extreme(rows: torch.Tensor, python: Callable[..., Any], largest: bool) -> Any:
    if rows.ndim != 1 or rows.is_complex():
        return python(rows)
    return (rows.max(0) if largest else rows.min(0)).values
