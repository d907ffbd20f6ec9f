"""Checks of values in a forward, `assert` and `if …: raise`, which a trace passes by: a graph has no exceptions."""

from __future__ import annotations

import ast
import functools
import linecache
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import FrameType
from typing import Any

import sympy
import torch
from torch.distributions import constraints

from ontrain.capture.source import is_users
from ontrain.internals import DataDependentOutputException, GuardOnDataDependentSymNode, wrapped

__all__ = ["passed_checks"]


@contextmanager
def passed_checks(
    silent: Callable[[], AbstractContextManager[None]] | None = None, held: Callable[[Any], None] | None = None
) -> Iterator[None]:
    """Let conditions on the values of tensors hold while a forward is traced, where only an exception hangs on them.

        if labels.max() >= self.vocab_size:     →  the branch is not taken
            raise ValueError(…)
        assert torch.all(ids >= 0)              →  holds

    That a constraint of torch.distributions returns at once counts, too: its caller raises.
    A condition that chooses between two computations is left to torch.export, which refuses it.

    Args:
        silent: while it is entered, nobody answers what a condition on values is; None if nobody does anyway.
        held: is told each condition on sizes that the user's own files have asked, as it was answered. torch's guards
            lack those that hold for all sizes from two on. What packages ask there, such as whether a batch of one row
            may be several sequences in one, is the same computation in most cases.
    """
    asked = functools.partial(_asked, silent=silent, held=held)
    with wrapped(dict.fromkeys(("torch.Tensor.__bool__", "torch.SymBool.__bool__"), asked)):
        yield


def _asked(
    ask: Callable[[Any], bool], silent: Callable[[], AbstractContextManager[None]] | None,
    held: Callable[[Any], None] | None,
) -> Callable[[Any], bool]:  # fmt: skip
    asking: list[Any] = []

    def answer(value: Any) -> bool:
        if asking:  # torch's modes hand the question on, one to the next
            return ask(value)
        asking.append(value)
        try:
            frame = sys._getframe(1)
            answered = _answer(ask, value, frame, silent)
            if held is not None and isinstance(value, torch.SymBool) and is_users(frame.f_code.co_filename):
                held(value.node.expr if answered else ~value.node.expr)
            return answered
        finally:
            asking.clear()

    return answer


def _answer(
    ask: Callable[[Any], bool], value: Any, frame: FrameType, silent: Callable[[], AbstractContextManager[None]] | None
) -> bool:
    try:
        with silent() if silent is not None else nullcontext():
            return ask(value)
    except (GuardOnDataDependentSymNode, DataDependentOutputException):
        wanted = _wanted(frame, value)
        if wanted is not None:
            return wanted
        if silent is None:
            raise
    return ask(value)


def _wanted(frame: FrameType, value: Any) -> bool | None:
    """Return what a value in the frame's line must be for no exception; None if that is unknown, or decides more."""
    verdict: bool | None = None
    for test, passes in _checks(frame.f_code.co_filename):
        if test.lineno <= frame.f_lineno <= (test.end_lineno or test.lineno):
            leaves = {_part(leaf, wanted, value) for leaf, wanted in _leaves(test, passes)}
            verdict = leaves.pop() if len(leaves) == 1 else None
    return verdict


@functools.cache
def _checks(file: str) -> list[tuple[ast.expr, bool]]:
    """Return the conditions in a file that only raise, and what each must be to pass; inner ones later."""
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except SyntaxError:  # a file that has changed since it was imported
        return []
    leaving = ast.Raise | ast.Return if file == constraints.__file__ else ast.Raise
    tests: list[tuple[ast.expr, bool]] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Assert):
            tests.append((node.test, True))
        elif isinstance(node, ast.If) and isinstance(node.body[-1], leaving):
            tests.append((node.test, False))
        elif isinstance(node, ast.If) and node.orelse and isinstance(node.orelse[-1], ast.Raise):
            tests.append((node.test, True))
    return tests


def _leaves(test: ast.expr, wanted: bool) -> Iterator[tuple[ast.expr, bool]]:
    """Yield each part of a condition, and what it has to be for the whole to be `wanted`."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        yield from _leaves(test.operand, not wanted)
    elif isinstance(test, ast.BoolOp):
        for value in test.values:
            yield from _leaves(value, wanted)
    else:
        yield test, wanted


def _part(test: ast.expr, wanted: bool, value: Any) -> bool | None:
    """Return what a value has to be that Python asks for `test`: of sequences it asks whether their items are equal."""
    operators = test.ops if isinstance(test, ast.Compare) else []
    if any(isinstance(operator, ast.In | ast.NotIn) for operator in operators):
        return None
    items = isinstance(value, torch.SymBool) and isinstance(value.node.expr, sympy.Eq)
    return wanted != (items and any(isinstance(operator, ast.NotEq) for operator in operators))
