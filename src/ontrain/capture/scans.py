"""torch's scan, traced without the gradient that torch prepares with it.

torch divides the body into a forward and a backward half as soon as something in it takes a gradient. The graph of a
capture needs neither, and the division fails over sizes that vary.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import torch

from ontrain.internals import wrapped

__all__ = ["undivided_scans"]

_PLACE = "torch._higher_order_ops.scan"


@contextmanager
def undivided_scans() -> Iterator[None]:
    """Have this thread's scans be one call each, of the whole body."""
    thread = threading.get_ident()

    def partitioner(own: Any) -> Any:
        def partitioned(body: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            return body if threading.get_ident() == thread else own.create_partitioned_graph(body, *args, **kwargs)

        return SimpleNamespace(create_partitioned_graph=partitioned)

    def halves(own: Any) -> Any:
        def made(body: Any, *operands: Any) -> Any:
            return _Undivided(body, *operands) if threading.get_ident() == thread else own(body, *operands)

        return made

    with wrapped({f"{_PLACE}.HopGraphMinCutPartitioner": partitioner, f"{_PLACE}.ScanAutogradImpl": halves}):
        yield


class _Undivided:
    """What torch's autograd function of scan asks for the results."""

    def __init__(
        self, body: Any, init: Sequence[torch.Tensor], xs: Sequence[torch.Tensor], additional_inputs: Sequence[Any]
    ) -> None:
        self._operands = (body, init, xs, additional_inputs)

    def call_forward(self) -> tuple[torch.Tensor, ...]:
        """Return the last states and the stacked rows."""
        return tuple(torch.ops.higher_order.scan(*self._operands))
