"""What `torch.compile` calls by the name of its backend, "ontrain"."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import fx

from ontrain.errors import CaptureError, OptionError
from ontrain.internals import is_resident
from ontrain.training.compiled.piece import Piece, inputs_of
from ontrain.training.compiled.shared import SharedPiece
from ontrain.training.ortmodule import FallbackPolicy, ORTModule
from ontrain.training.ortmodule.fallback import Fallback
from ontrain.training.ortmodule.function import leave_backward_untraced

__all__ = ["ontrain"]

_OPTIONS = ("fallback", "memory_budget", "provider")
_FEW = 4
"""Calls without a parameter that PyTorch runs faster than a graph is begun."""
_ALL = (
    FallbackPolicy.FALLBACK_FORCE_TORCH_FORWARD
    | FallbackPolicy.FALLBACK_UNSUPPORTED_DEVICE
    | FallbackPolicy.FALLBACK_BAD_INITIALIZATION
)

leave_backward_untraced()


def ontrain(
    graph_module: fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Callable[..., Any]:
    """Return what runs a graph of TorchDynamo's: forward and backward as one ONNX graph, for all sizes.

    TorchDynamo cuts a program where Python must look at a number, and calls this for each piece in between. The pieces
    come before torch differentiates them, so that one plan holds forward and backward of a piece. A piece of a few
    operators without parameters stays PyTorch's. A piece that several modules share, such as the layers of a network,
    has a graph for each, with its parameters. A piece that ontrain refuses is run by PyTorch, with a warning that says
    why.

    Args:
        graph_module: the piece.
        example_inputs: the values of its inputs at the call that was traced.
        mode: `torch.compile`'s; None or "default".
        options: `torch.compile`'s: `provider` and `memory_budget` as for `ORTModule`, and `fallback`, in which cases
            PyTorch runs a piece; "FALLBACK_DISABLE" raises the error.

    Raises:
        OptionError: another mode, or an unknown option.
        CaptureError: with that fallback, a piece that writes to one of its inputs.
    """
    if mode not in (None, "default"):
        raise OptionError(
            f"the backend ontrain has no mode {mode!r}",
            reason="products are always tuned, and CUDA graphs always taken where they can be",
            way_out="leave mode out",
        )
    settings = dict(options or {})
    for name in settings:
        if name not in _OPTIONS:
            raise OptionError(f"the backend ontrain has no option {name!r}", way_out=f"it has {', '.join(_OPTIONS)}")
    if _is_small(graph_module):
        return graph_module.forward
    try:
        inputs = inputs_of(graph_module, example_inputs)
    except CaptureError as error:
        fallback = Fallback(settings.get("fallback", _ALL))
        policy = fallback.takes(error)
        if policy is None:
            raise
        fallback.fall(Piece.__name__, error, policy)
        return graph_module.forward
    wrap = functools.partial(ORTModule, **{"fallback": _ALL, **settings}, lazy_outputs=False)
    return SharedPiece(graph_module.forward, inputs, wrap, example_inputs)


def _is_small(graph_module: fx.GraphModule) -> bool:
    nodes = graph_module.graph.nodes
    calls = sum(node.op in ("call_function", "call_method", "call_module") for node in nodes)
    resident = any(is_resident(node) for node in nodes if node.op == "placeholder")
    tensors = any(isinstance(node.meta.get("example_value"), torch.Tensor) for node in nodes if node.op != "output")
    return not tensors or (calls < _FEW and not resident)
