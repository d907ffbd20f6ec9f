"""Values of a graph under `+ - * /`, in each thread by the builder that this thread is using.

onnx_ir has one handler for the whole process. The one that is set here, while any thread uses a builder so, passes an
operation on to the builder of the thread, and where there is none to the handler that was set before.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import onnx_ir as ir

from ontrain.locks import Lock
from ontrain.operators import Emitter, Operand, Value

__all__ = ["arithmetic_by"]

_builder: ContextVar[Emitter | None] = ContextVar("_builder", default=None)


class _ByThread:
    """What onnx_ir calls for an operator between values."""

    def __init__(self) -> None:
        self._lock, self._users = Lock(), 0
        self._others: Any = None
        """The handler of threads that use no builder."""

    def enter(self) -> None:
        with self._lock:
            self._users += 1
            before = ir.set_value_magic_handler(self)
            if before is not self:
                self._others = before

    def leave(self) -> None:
        with self._lock:
            self._users -= 1
            if not self._users:
                ir.set_value_magic_handler(self._others)

    def Add(self, left: Operand, right: Operand) -> Value:  # noqa: N802 (onnx_ir's name)
        return self._handler("+").Add(left, right)

    def Sub(self, left: Operand, right: Operand) -> Value:  # noqa: N802 (onnx_ir's name)
        return self._handler("-").Sub(left, right)

    def Mul(self, left: Operand, right: Operand) -> Value:  # noqa: N802 (onnx_ir's name)
        return self._handler("*").Mul(left, right)

    def Div(self, left: Operand, right: Operand) -> Value:  # noqa: N802 (onnx_ir's name)
        return self._handler("/").Div(left, right)

    def Neg(self, operand: Operand) -> Value:  # noqa: N802 (onnx_ir's name)
        return self._handler("-").Neg(operand)

    def _handler(self, sign: str) -> Emitter:
        handler = _builder.get() or self._others
        if handler is None:  # as onnx_ir itself says it where nobody has set one
            raise ValueError(f"values of a graph have no {sign} outside of a builder's arithmetic()")
        return handler


_by_thread = _ByThread()


@contextmanager
def arithmetic_by(builder: Emitter) -> Iterator[None]:
    """Let values be combined by `+ - * /` and unary minus in this thread, each making a node by `builder`."""
    _by_thread.enter()
    token = _builder.set(builder)
    try:
        yield
    finally:
        _builder.reset(token)
        _by_thread.leave()
