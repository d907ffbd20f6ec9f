"""A small trial of what torch does behind a name that it does not promise: it raises where torch does something else.

A trial takes the object that stands under the name. It runs in a thread of its own, on a few numbers, without changing
anything, the random state included. `expect` is what each ends in.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest import mock

import torch

__all__ = [
    "CanaryError",
    "calls",
    "expect",
    "expect_close",
]


class CanaryError(Exception):
    """A trial came out otherwise than expected."""


def expect(holds: bool, what: str) -> None:
    """Raise unless it holds."""
    if not holds:
        raise CanaryError(what)


def expect_close(actual: torch.Tensor, wanted: torch.Tensor, what: str) -> None:
    """Raise unless a result has the dtype, shape and values of another way to compute it."""
    expect(actual.dtype == wanted.dtype and actual.shape == wanted.shape, f"{what} has another dtype or shape")
    expect(torch.allclose(actual, wanted, rtol=1e-4, atol=1e-5), f"{what} has other values")


def calls(run: Callable[[], Any], owner: Any, attribute: str, result: Any = None) -> None:
    """Raise unless `run` comes by what is put in place of an attribute."""
    called: list[bool] = []

    def instead(*args: Any, **kwargs: Any) -> Any:
        called.append(True)
        return result

    with mock.patch.object(owner, attribute, instead):
        run()
    expect(bool(called), f"{attribute} is not called any more")
