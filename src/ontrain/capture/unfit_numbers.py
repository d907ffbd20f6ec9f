"""Numbers that vary where an operator's translation takes constants: the trace asks what they are, and holds for these.

x.kthvalue(k.item(), dim=1)     →  a capture for each k
x.unfold(1, x.shape[1] // 2, 1) →  a capture for each length
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch

from ontrain.capture.autograd import traced_here
from ontrain.errors import CaptureError
from ontrain.internals import OpOverload, private, wrapped

__all__ = ["UnfitNumberError", "unfit_numbers_asked"]

_CALL = "torch.fx.experimental.proxy_tensor.proxy_call"


class UnfitNumberError(CaptureError):
    """A translation does not take a number that varies.

    Attributes:
        operator: whose translation it is.
    """

    operator: OpOverload

    @classmethod
    def of(cls, error: CaptureError, operator: OpOverload) -> UnfitNumberError:
        """Return a refusal as that of an operator's number."""
        unfit = cls(error.problem, node=error.node, source=error.source, reason=error.reason, way_out=error.way_out)
        unfit.operator = operator
        return unfit


def unfit_numbers_asked(operators: Collection[OpOverload]) -> AbstractContextManager[None]:
    """Have a trace ask what the numbers are that it hands to these operators: those of the batch at hand."""
    return _asked(operators) if operators else nullcontext()


@contextmanager
def _asked(operators: Collection[OpOverload]) -> Iterator[None]:
    def asking(call: Callable[..., Any]) -> Callable[..., Any]:
        def proxy_call(mode: Any, func: Any, pre_dispatch: bool, args: Any, kwargs: Any) -> Any:
            if func in operators and traced_here():
                args, kwargs = private("torch.utils._pytree").tree_map(_number, (args, kwargs))
            return call(mode, func, pre_dispatch, args, kwargs)

        return proxy_call

    with wrapped({_CALL: asking}):
        yield


def _number(argument: Any) -> Any:
    if isinstance(argument, torch.SymInt):
        return int(argument)
    return float(argument) if isinstance(argument, torch.SymFloat) else argument
