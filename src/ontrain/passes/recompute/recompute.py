"""The pass that computes values again going backward instead of keeping them."""

from __future__ import annotations

import sys

import onnx_ir as ir

from ontrain.functions import Flops
from ontrain.graph import MemoryOf, rebuild
from ontrain.passes.infra import Pass
from ontrain.passes.recompute.choose import Choice, choose
from ontrain.passes.recompute.clusters import forced
from ontrain.passes.recompute.request import Recomputation
from ontrain.passes.recompute.rewrite import insert_copies
from ontrain.passes.recompute.schedule import Schedule

__all__ = ["Recompute"]


class Recompute(Pass):
    """Free activations after their last use going forward, and compute them again just before backward reads them.

        x ─ Gelu ─ y ─ Gemm … loss … Gemm'(dy, y)
    →   x ─ Gelu ─ y ─ Gemm … loss … x ─ Gelu ─ y_again ─ Gemm'(dy, y_again)

    Equal to the bit, because the same operator runs on the same values. What draws random numbers is never run twice:
    dropout's mask is kept, a byte an element, and applied again; so is that of attention with dropout, whose
    probabilities are computed again without a draw. Left alone are values that are handed out, and branches and loops.

    Which values: those that the request names, then the cheapest per byte freed at the node where most memory is in
    use, until the peak is within the limit. Cost is the floating-point operations of products, and the bytes moved.
    A value that is needed to compute another again lives on, or is computed again as well if it is large.

    Runs on a step, or on a graph made by `autodiff.build_backward`, whose order it takes as the order of execution. It
    comes last: a pass that shares equal computations would undo it.

    Args:
        request: switches and named clusters; its budget is the caller's to turn into `limit`.
        memory_of: says where a graph's values lie, as the provider will lay them out.
        limit: bytes for the peak that lifetimes in the graph predict; None for no bound.
    """

    def __init__(self, request: Recomputation, memory_of: MemoryOf, limit: int | None = None) -> None:
        self.request, self.memory_of = request, memory_of
        self.limit = 0 if request.least else sys.maxsize if limit is None else limit
        self.predicted = 0
        """Bytes of the peak in the graph that `apply` made."""
        self.flops = Flops()
        """What it computes twice."""

    def apply(self, model: ir.Model) -> tuple[ir.Model, int]:
        """Return the new model and how many nodes it computes a second time.

        Raises:
            OptionError: the request names a cluster that there is not, or layers of a model without any.
        """
        rebuilt = rebuild(model)
        schedule = Schedule(rebuilt.graph, self.memory_of(rebuilt.graph))
        choice: Choice = choose(schedule, self.limit, forced(schedule, self.request))
        self.predicted, self.flops = choice.profile.peak, choice.flops
        return rebuilt, insert_copies(schedule, choice)
