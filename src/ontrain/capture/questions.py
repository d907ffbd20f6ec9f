"""What torch asks about sizes and numbers while it traces a program or writes it anew, and who answers.

    scores, labels = scores[labels != -100], labels[labels != -100]
    cross_entropy_loss(scores, labels)                              →   () whatever the number of labels

For the shape of a result torch runs the code that an operator is made of. The code may ask whether a tensor is empty,
and nobody knows that before the program runs. An operator that stays one in the graph answers when it runs; its result
has the same shape either way, so here the answer is no.

    scores[:, :-1].reshape(-1, 11)                                  →   asks whether the slice has a length of one

Where sizes are known while forward is traced, torch notes its answers as guards. Those for an operator are no branches
of forward.
"""

from __future__ import annotations

import inspect
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any
from weakref import WeakKeyDictionary

from ontrain.capture.aten.registry import find
from ontrain.capture.sympy_sizes import certain
from ontrain.internals import GuardOnDataDependentSymNode, OpOverload, wrapped

__all__ = ["answer_if_not_empty", "asked_by_operators", "operators_noted", "questions_answered"]

_EVALUATE = "torch.fx.experimental.symbolic_shapes.ShapeEnv.evaluate_expr"
_NOT_EMPTY = 1, 1 << 53
"""Bounds of a size."""
_noted: WeakKeyDictionary[Any, set[int]] = WeakKeyDictionary()
"""Places of guards that operators asked for, by the environment of a trace."""


@contextmanager
def questions_answered(answer: Callable[[Any], Any]) -> Iterator[None]:
    """Put what torch cannot know in this thread to a function of sympy's expression; None leaves it unanswered."""
    asking = threading.get_ident()

    def answering(evaluate: Callable[..., Any]) -> Callable[..., Any]:
        def evaluate_or_answer(environment: Any, expr: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                return evaluate(environment, expr, *args, **kwargs)
            except GuardOnDataDependentSymNode:
                value = answer(expr) if threading.get_ident() == asking else None
                if value is None:
                    raise
                return value

        return _unseen(evaluate_or_answer, evaluate)

    with wrapped({_EVALUATE: answering}):
        yield


def answer_if_not_empty(expr: Any) -> Any:
    """Return what an expression of sizes is if none is 0, where an operator with a translation asks.

    None if that may be one or the other, or something else asks.
    """
    if not _is_whole(_called()):
        return None
    return certain(expr, {symbol.name: _NOT_EMPTY for symbol in expr.free_symbols})


@contextmanager
def operators_noted() -> Iterator[None]:
    """Note in this thread which guards an operator with a translation asks for."""
    tracing = threading.get_ident()

    def noting(evaluate: Callable[..., Any]) -> Callable[..., Any]:
        def evaluate_and_note(environment: Any, *args: Any, **kwargs: Any) -> Any:
            before = len(environment.guards)
            try:
                return evaluate(environment, *args, **kwargs)
            finally:
                if len(environment.guards) > before and threading.get_ident() == tracing and _is_whole(_called()):
                    _noted.setdefault(environment, set()).update(range(before, len(environment.guards)))

        return _unseen(evaluate_and_note, evaluate)

    with wrapped({_EVALUATE: noting}):
        yield


def asked_by_operators(environment: Any) -> set[int]:
    """Return the places of those among an environment's guards that operators with a translation asked for."""
    return _noted.get(environment, set())


def _unseen(wrapper: Callable[..., Any], function: Callable[..., Any]) -> Callable[..., Any]:
    """A wrapper that counts as code of the function's file.

    Torch notes with a guard which file asks for it, and looks past its own files of symbolic sizes.
    """
    python: Any = wrapper
    python.__code__ = python.__code__.replace(co_filename=inspect.unwrap(function).__code__.co_filename)
    return wrapper


def _is_whole(operator: OpOverload | None) -> bool:
    return operator is not None and find(operator) is not None


def _called() -> OpOverload | None:
    """The operator of the program that is being called; it may call others."""
    frame: FrameType | None = sys._getframe(1)
    operator = None
    while frame is not None:
        if frame.f_code is OpOverload.__call__.__code__:
            operator = frame.f_locals.get("self", operator)
        frame = frame.f_back
    return operator
