"""One case of onnx's suite, run by an `InferenceSession`: it passes, or the reason why not."""

from __future__ import annotations

import contextlib
import re
import signal
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

import ontrain
from ontrain.errors import OntrainError
from tests.conformance.cases import Case

__all__ = ["LIMIT", "verdict"]

LIMIT = 20.0
"""Seconds of processor time that a case may take. The slowest, a VGG of 19 layers, takes a few."""


class _OutOfTime(BaseException):
    """Not an Exception, so that nobody catches it on the way."""


def verdict(case: Case, providers: Sequence[str]) -> str | None:
    """Run a case.

    Returns:
        None if all results agree within the case's own tolerances, else the reason in one line. It begins with
        "refused" for an error of ours, "escaped" for an error that is not ours, "wrong" for results that differ.
    """
    try:
        with _limit(LIMIT), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model, data_sets = case.load()
            session = ontrain.InferenceSession(model, providers=list(providers), strict_providers=True)
            names = [value.name for value in session.get_inputs()]
            for feeds, expected in data_sets:
                results = session.run(None, dict(zip(names, feeds, strict=True)))
                _compare(results, expected, case)
    except _OutOfTime:
        return f"out of time: more than {LIMIT:g} s of processor time"
    except AssertionError as error:
        return f"wrong: {_line(str(error))}"
    except OntrainError as error:
        return f"refused: {_line(error.problem)}" + (f" ({_line(error.reason)})" if error.reason else "")
    except Exception as error:  # noqa: BLE001 - what escapes is told, too
        return f"escaped: {type(error).__name__}: {_line(str(error))}"
    return None


@contextlib.contextmanager
def _limit(seconds: float) -> Iterator[None]:
    """Interrupt what takes so much processor time, or several times as long altogether, because it waits for ever."""
    timers = ((signal.SIGPROF, signal.ITIMER_PROF, seconds), (signal.SIGALRM, signal.ITIMER_REAL, 8 * seconds))

    def stop(*_: object) -> None:
        raise _OutOfTime

    before = [signal.signal(number, stop) for number, _, _ in timers]
    for _, timer, length in timers:
        signal.setitimer(timer, length)
    try:
        yield
    finally:
        for (number, timer, _), handler in zip(timers, before, strict=True):
            signal.setitimer(timer, 0)
            signal.signal(number, handler)


def _compare(results: Sequence[Any], expected: Sequence[Any], case: Case) -> None:
    assert len(results) == len(expected), f"{len(results)} results for {len(expected)}"
    for result, value in zip(results, expected, strict=True):
        if isinstance(value, list | tuple):
            assert isinstance(result, list | tuple), f"{type(result).__name__} for a sequence"
            _compare(result, value, case)
        elif value is None:
            assert result is None, "a value for an empty optional"
        else:
            _compare_arrays(np.asarray(result), np.asarray(value), case)


def _compare_arrays(result: Any, value: Any, case: Case) -> None:
    """onnx's own comparison: equal shapes and dtypes, and values within the case's tolerances."""
    assert result.shape == value.shape, f"shape {list(result.shape)} for {list(value.shape)}"
    if value.dtype.kind in "OSUT":
        assert result.tolist() == value.tolist(), f"{result.tolist()} for {value.tolist()}"
        return
    assert result.dtype == value.dtype, f"dtype {result.dtype} for {value.dtype}"
    rtol = case.rtol
    if value.dtype.isbuiltin != 1:  # ml_dtypes: numpy cannot compare them
        if value.dtype.name == "bfloat16":
            rtol = max(rtol, 2**-6)
        result, value = result.astype(np.float64), value.astype(np.float64)
    np.testing.assert_allclose(result, value, rtol=rtol, atol=case.atol)


def _line(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip()[:200]
