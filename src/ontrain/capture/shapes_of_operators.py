"""Shapes of operators that stay whole while torch writes a program anew, of sizes that follow from values.

    scores, labels = scores[labels != -100], labels[labels != -100]
    cross_entropy_loss(scores, labels)                              →   () whatever the number of labels

For the shape of a result torch runs the code that an operator is made of. The code may ask whether a tensor is empty,
and nobody knows that before the program runs. The operator itself answers when it runs; its result has the same shape
either way, so here the answer is no.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from ontrain.capture.aten.registry import find
from ontrain.capture.sympy_sizes import certain
from ontrain.internals import GuardOnDataDependentSymNode, OpOverload, wrapped

__all__ = ["shapes_of_whole_operators"]

_QUESTIONS = "torch.fx.experimental.symbolic_shapes.ShapeEnv.evaluate_expr"
_NOT_EMPTY = 1, 1 << 53
"""Bounds of a size."""


@contextmanager
def shapes_of_whole_operators() -> Iterator[None]:
    """Take tensors for ones that are not empty, in this thread, where an operator with a translation asks."""
    writing = threading.get_ident()

    def answering(evaluate: Callable[..., Any]) -> Callable[..., Any]:
        def answer(environment: Any, expr: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                return evaluate(environment, expr, *args, **kwargs)
            except GuardOnDataDependentSymNode:
                sure = _if_not_empty(expr) if threading.get_ident() == writing else None
                if sure is None:
                    raise
                return sure

        return answer

    with wrapped({_QUESTIONS: answering}):
        yield


def _if_not_empty(expr: Any) -> Any:
    """The value of an expression of sizes of which none is 0, None if there are several, or another operator asks."""
    operator = _called()
    if operator is None or find(operator) is None:
        return None
    return certain(expr, {symbol.name: _NOT_EMPTY for symbol in expr.free_symbols})


def _called() -> OpOverload | None:
    """The operator of the program that is being called; it may call others."""
    frame: FrameType | None = sys._getframe(1)
    operator = None
    while frame is not None:
        if frame.f_code is OpOverload.__call__.__code__:
            operator = frame.f_locals.get("self", operator)
        frame = frame.f_back
    return operator
