"""Errors that are ontrain's and onnxruntime's at once, so that programs go on catching what they caught before."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

from ontrain.errors import OntrainError
from ontrain.stock import stock_module

__all__ = ["also", "told_by_onnxruntime", "upstream"]


def upstream(name: str) -> type[Exception]:
    """Return an exception class of onnxruntime by its name, such as "InvalidArgument"."""
    kind: type[Exception] = getattr(stock_module("onnxruntime.capi.onnxruntime_pybind11_state"), name)
    return kind


def also(error: OntrainError, kind: type[BaseException]) -> OntrainError:
    """Return an error with the same message that `except` finds under its own class and under `kind`, too."""
    return _restored(type(error), kind, error.args, dict(vars(error)))


@contextlib.contextmanager
def told_by_onnxruntime(explain: Callable[[Exception], OntrainError]) -> Iterator[None]:
    """Turn what onnxruntime raises inside the block into errors of both kinds.

    Args:
        explain: makes the error of ontrain's; the class of onnxruntime's is added.

    Raises:
        OntrainError: the block raised.
    """
    try:
        yield
    except OntrainError:
        raise
    except Exception as error:  # onnxruntime's errors share no base but Exception
        raise also(explain(error), type(error)) from error


def _restored(
    ours: type[OntrainError], theirs: type[BaseException], args: tuple[Any, ...], told: dict[str, Any]
) -> OntrainError:
    kind = _both(ours, theirs)  # type: ignore[arg-type]  # classes are hashable
    error = kind.__new__(kind, *args)
    vars(error).update(told)
    return error


@functools.cache
def _both(ours: type[OntrainError], theirs: type[BaseException]) -> type[OntrainError]:
    if issubclass(ours, theirs):
        return ours

    def reduce(self: OntrainError) -> tuple[Any, ...]:
        return _restored, (ours, theirs, self.args, dict(vars(self)))

    body = {"__doc__": ours.__doc__, "__module__": ours.__module__, "__reduce__": reduce}
    try:
        return type(ours.__name__, (ours, theirs), body)
    except TypeError:
        return ours  # a class such as OSError lays its instances out in another way
