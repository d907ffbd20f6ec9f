"""What a session for inference asks of the passes over its graphs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import onnx_ir as ir

__all__ = ["Padding", "Serving", "serve", "serving_of"]

Padding = Literal["computed", "states", "zeros"]
_SERVING = "ontrain.serving"


@dataclass(frozen=True)
class Serving:
    """How a graph runs that nobody differentiates.

    Attributes:
        padding: which outputs hold zeros where a token is padding. "computed": none. "states": those as wide as the
            tokens that attention works on. "zeros": all with a row for each token.
    """

    padding: Padding = "computed"


def serve(model: ir.Model, how: Serving) -> None:
    """Let the passes for inference run over a graph, and over those that are made of it."""
    model.graph.meta[_SERVING] = how


def serving_of(graph: ir.Graph) -> Serving | None:
    """Return how a graph is served; None for one that is trained, or that somebody else evaluates."""
    how = graph.meta.get(_SERVING)
    return how if isinstance(how, Serving) else None
