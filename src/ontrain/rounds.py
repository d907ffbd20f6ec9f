"""How long loops may run: a file of a few bytes can ask for more than anyone's lifetime holds.

A loop ends early at a number of rounds, or because another thread asks for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from ontrain.errors import ProviderError
from ontrain.limits import limit

__all__ = [
    "LOOP_LIMIT", "StoppedError", "counted_rounds", "loop_limit", "loop_refused", "may_be_stopped", "stop_if_asked",
    "stopped_by",
]  # fmt: skip

LOOP_LIMIT = "ONTRAIN_LOOP_LIMIT"
"""The environment variable that sets the limit."""
_DEFAULT = 100_000
_spent: ContextVar[list[int] | None] = ContextVar("_spent", default=None)
_asks: ContextVar[Callable[[], bool] | None] = ContextVar("_asks", default=None)


class StoppedError(ProviderError):
    """A run ends early because its caller asks for it."""


@contextmanager
def stopped_by(asks: Callable[[], bool]) -> Iterator[None]:
    """Let runs inside the block end as soon as `asks` says so.

    Args:
        asks: whether the caller wants the run to end. It is asked between the steps of a graph and between the rounds
            of a loop, so it has to be quick.
    """
    token = _asks.set(asks)
    try:
        yield
    finally:
        _asks.reset(token)


def stop_if_asked() -> None:
    """End the run if its caller asks for it.

    Raises:
        StoppedError: the caller does.
    """
    asks = _asks.get()
    if asks is not None and asks():
        raise StoppedError("the run is stopped", reason="Exiting due to terminate flag being set to true.")


def may_be_stopped() -> bool:
    """Return whether the caller of the run may ask it to end."""
    return _asks.get() is not None


def loop_limit() -> int:
    """Return how many rounds a Loop may run in one run of a graph, those of the loops inside it included.

    Raises:
        OptionError: ONTRAIN_LOOP_LIMIT is no whole number from 1.
    """
    return limit(LOOP_LIMIT, _DEFAULT, "rounds")


def loop_refused() -> ProviderError:
    """Return the error for a loop that goes on beyond the limit."""
    return ProviderError(
        f"a Loop runs more than {loop_limit()} rounds, those of loops inside it included",
        reason="so many are taken for a loop without end",
        way_out=f"set {LOOP_LIMIT} to a larger number if the model is meant so",
    )


@contextmanager
def counted_rounds() -> Iterator[Callable[[], None]]:
    """Give a function to be called once a round; loops that run inside the block count on.

    Raises:
        ProviderError: from that function, when the limit is passed.
        StoppedError: from that function, when the caller of the run asks it to end.
    """
    spent, most = _spent.get(), loop_limit()
    token = None
    if spent is None:
        spent = [0]
        token = _spent.set(spent)

    def another() -> None:
        stop_if_asked()
        spent[0] += 1
        if spent[0] > most:
            raise loop_refused()

    try:
        yield another
    finally:
        if token is not None:
            _spent.reset(token)
