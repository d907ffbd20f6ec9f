"""Session options that are the user's: changed for the time in which one session opens, and seen so by no other."""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ontrain.inference.options import EXTERNAL_FOLDER, SessionOptions, config_entry
from ontrain.locks import Lock
from ontrain.stock import stock

__all__ = ["Changes", "lent"]


@dataclass(frozen=True)
class Changes:
    """What a session needs of its options beside what the user set.

    Attributes:
        plain: onnxruntime is not to optimise the graph.
        folder: where external data lie of a model that is given as bytes; "" for what the user said.
    """

    plain: bool = False
    folder: str = ""


class _Loan:
    """Options that many sessions read at once, or one changes."""

    def __init__(self) -> None:
        self._condition, self._readers = threading.Condition(), 0

    @contextlib.contextmanager
    def read(self) -> Iterator[None]:
        with self._condition:
            self._readers += 1
        try:
            yield
        finally:
            with self._condition:
                self._readers -= 1
                self._condition.notify_all()

    @contextlib.contextmanager
    def written(self) -> Iterator[None]:
        with self._condition:  # as long as it is held, nobody begins to read
            self._condition.wait_for(lambda: not self._readers)
            yield


_loans: weakref.WeakKeyDictionary[Any, _Loan] = weakref.WeakKeyDictionary()
_one_loan = Lock()
if hasattr(os, "register_at_fork"):  # a thread that is gone in the child may hold one
    os.register_at_fork(after_in_child=_loans.clear)


@contextlib.contextmanager
def lent(options: Any, changes: Changes) -> Iterator[Any]:
    """Return a context with the options for one session: the user's own, as they were afterwards.

    onnxruntime has no copy of session options. Sessions that change nothing open at the same time.

    Args:
        options: session options of onnxruntime or ontrain, or None.
        changes: what the session needs beside.
    """
    if options is None:
        yield _changed(SessionOptions(), changes) if changes != Changes() else None
        return
    if not isinstance(options, stock().SessionOptions):
        yield options  # onnxruntime says what it is not
        return
    with _one_loan:
        loan = _loans.setdefault(options, _Loan())
    if changes == Changes():
        with loan.read():
            yield options
        return
    with loan.written():
        level, folder = options.graph_optimization_level, config_entry(options, EXTERNAL_FOLDER)
        entries = dict(getattr(options, "config_entries", {}))
        try:
            yield _changed(options, changes)
        finally:
            options.graph_optimization_level = level
            if changes.folder:
                options.add_session_config_entry(EXTERNAL_FOLDER, folder)
            if isinstance(options, SessionOptions):
                options.config_entries = entries


def _changed(options: Any, changes: Changes) -> Any:
    if changes.plain:
        options.graph_optimization_level = stock().GraphOptimizationLevel.ORT_DISABLE_ALL
    if changes.folder:
        options.add_session_config_entry(EXTERNAL_FOLDER, changes.folder)
    return options
