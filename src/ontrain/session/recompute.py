"""A plan made to fit a memory budget: the pass predicts, the provider's own plan decides."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar

import onnx_ir as ir

from ontrain.errors import OptionError
from ontrain.functions import count_flops
from ontrain.graph import MemoryOf
from ontrain.passes import Journal, Recomputation, Recompute, Schedule, clusters, run_passes
from ontrain.providers import ExecutionProvider
from ontrain.units import byte_text

_logger = logging.getLogger("ontrain.phases")

__all__ = ["Compiled", "Recomputed", "Recomputing", "fit", "recomputing", "table"]

_ATTEMPTS = 8
_CLOSE = 0.995
"""An attempt that did not fit is followed by one for so much less at most, or less by what was too much."""


class _Planned(Protocol):
    @property
    def planned_bytes(self) -> int: ...


Compiled = TypeVar("Compiled", bound=_Planned)


@dataclass(frozen=True)
class Recomputed:
    """What computing again saved and what it costs.

    Attributes:
        bytes_before, bytes_after: working memory of the plan as it was and as it is.
        nodes: how many nodes run a second time.
        flop: floating-point operations of these nodes.
        step_flop: those of the step without them.
    """

    bytes_before: int
    bytes_after: int
    nodes: int = 0
    flop: int = 0
    step_flop: int = 0

    @property
    def share(self) -> float:
        """What is computed twice as a part of the step's floating-point operations."""
        return self.flop / self.step_flop if self.step_flop else 0.0


@dataclass(frozen=True)
class Recomputing:
    """What is to be computed again, and what the provider says of a graph's memory."""

    request: Recomputation
    memory_of: MemoryOf


def recomputing(provider: ExecutionProvider, request: Recomputation | None) -> Recomputing | None:
    """Return what a request needs of a provider; None where nothing is asked.

    Raises:
        OptionError: the provider lays no memory out by the graph's order, so that recomputation would cost time and
            save nothing.
    """
    if request is None or not request.asked:
        return None
    if provider.capabilities.memory_of is not None:
        return Recomputing(request, provider.capabilities.memory_of)
    raise OptionError(
        f"{provider.name} cannot recompute activations",
        reason="it orders nodes and shares equal computations by itself, so that no memory would be saved",
        way_out="use TorchExecutionProvider, or leave memory_budget and the switches of recomputation out",
    )


def fit(
    graph: ir.Model,
    executable: Compiled,
    recomputing: Recomputing,
    compiler: Callable[[ir.Model], Compiled],
    journal: Journal,
) -> tuple[ir.Model, Compiled, Recomputed]:
    """Return a graph that recomputes what the request asks for, its executable, and what became of memory.

    The first attempt takes the pass's prediction; one that needs more than the budget, as the provider plans it, is
    followed by one with a lower limit.

    Args:
        graph: the finished graph, and `executable` what it compiles to.
        recomputing: what to compute again.
        compiler: makes a graph executable.
        journal: gets the pass's report.

    Raises:
        OptionError: the budget cannot be reached; tells how little can.
    """
    request, memory_of = recomputing.request, recomputing.memory_of
    before = executable.planned_bytes
    budget = request.budget if isinstance(request.budget, int) else int((request.budget or 1.0) * before)
    bound = request.budget is not None
    recomputed = Recomputed(before, before)
    if bound and before <= budget and request == Recomputation(request.budget):
        return graph, executable, recomputed
    step_flop = count_flops(graph).total
    schedule = Schedule(graph.graph, memory_of(graph.graph))
    predicted = max(schedule.profile(()).peak, 1)
    if _logger.isEnabledFor(logging.INFO):
        _logger.info("what backward may compute again:\n%s", table(schedule))
    limit = int(budget * predicted / max(before, 1)) if bound else None
    least = before
    for _ in range(_ATTEMPTS):
        once = Recompute(request, memory_of, limit)
        changed, reports = run_passes(graph, [once], stage="step", journal=journal)
        if not reports:
            return graph, executable, recomputed  # held back, to find a wrong number
        compiled = compiler(changed)
        after = compiled.planned_bytes
        if not bound or request.least or after <= budget:
            done = Recomputed(before, after, reports[0].changed, once.flops.total, step_flop)
            _logger.info("working memory %d → %d bytes, %.1f %% of FLOP again", before, after, 100 * done.share)
            return changed, compiled, done
        least = min(least, after)
        journal.reports.pop()
        assert limit is not None
        if once.predicted > limit:
            break  # there is nothing left to compute again
        excess = int((after - budget) * predicted / max(before, 1))
        limit = max(0, min(int(limit * _CLOSE), once.predicted - excess))
    raise _unreachable(request.budget, budget, before, least)


def table(schedule: Schedule) -> str:
    """Return what could be computed again as lines of text: places, bytes that each keeps, cost a byte, operators."""
    rows = [
        f"{len(c.roots):>6} × {c.bytes:>12,} B  {c.cost / max(c.bytes, 1):>8.0f} FLOP/B  {c.name}"
        for c in clusters(schedule)
    ]
    return "\n".join(rows)


def _unreachable(asked: int | float | None, budget: int, before: int, least: int) -> OptionError:
    told = f"{asked}" if isinstance(asked, float) else byte_text(budget)
    return OptionError(
        f"memory_budget {told} cannot be reached: this batch needs {byte_text(least)} of working memory at least",
        reason=f"it needs {byte_text(before)} without recomputation, and {least / max(before, 1):.3f} of it with",
        way_out=f"allow {least} bytes, or feed smaller batches and accumulate their gradients",
    )
