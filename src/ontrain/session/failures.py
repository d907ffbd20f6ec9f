"""What a kernel says, as an error that names the input at fault, or else the node."""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir
import torch

from ontrain.errors import OntrainError, ProviderError
from ontrain.graph import describe, source_of
from ontrain.session.feeds import explain_index_error

__all__ = ["explained"]

# What torch's kernels, numpy and onnx's evaluator raise for values that an operator cannot take. The evaluator states
# what it expects of operands by `assert`.
_REFUSALS = (
    ArithmeticError, AssertionError, AttributeError, LookupError, MemoryError, OSError, RuntimeError, TypeError,
    ValueError,
)  # fmt: skip


class explained:  # noqa: N801 - a block, as `contextlib.suppress` is
    """Turns what a provider raises inside the block into an error for the user.

    Args:
        graph: that is run.
        feeds: the batch.
        provider: its name.
        what: what is run, for the message.

    Raises:
        InputError: a label or an index of the batch lies outside of what an operator can take.
        ProviderError: a kernel refused its operands, or there is no memory for them; names the node where the provider
            tells which.
    """

    def __init__(self, graph: ir.Graph, feeds: Mapping[str, object], provider: str, what: str = "a step") -> None:
        self._graph, self._feeds, self._provider, self._what = graph, feeds, provider, what

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: object, error: BaseException | None, trace: object) -> None:
        if not isinstance(error, _REFUSALS):
            return
        index_error = explain_index_error(self._graph, self._feeds)
        if index_error is not None:
            raise index_error from error
        if isinstance(error, OntrainError | torch.OutOfMemoryError):
            return
        node = next(iter(getattr(error, "__notes__", ())), None)
        said = str(error).strip().partition("\n")[0]
        kind = type(error).__name__
        raise ProviderError(
            f"{self._provider} failed in {self._what}",
            node=node,
            source=next((source_of(other) for other in self._graph if node and describe(other) == node), None),
            reason=f"{kind}: {said}" if said and kind not in ("RuntimeError", "ValueError") else said or kind,
        ) from error
