"""How many rows of a batch its plan must hold: counted before the plan is chosen, rounded so that plans stay few."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import onnx_ir as ir

from ontrain.functions.cost import count_flops
from ontrain.passes import Pass
from ontrain.passes.rows import bucket, measure
from ontrain.providers import Executable, ExecutionProvider
from ontrain.session.recent import Recent

__all__ = ["WORTH_COUNTING", "RowCounts", "Rows", "plan_key"]

WORTH_COUNTING = 100_000_000
"""Operations in the products of a forward pass from which on rows are counted. Counting takes some 50 µs a step, in
which a processor makes so many that nothing would be won below."""
_SCOPES = 256
"""Graphs and shapes whose counters are kept."""

Rows = Mapping[str, int]
"""How many rows a plan keeps of each selection, by its name; empty where nothing can be left out."""


def plan_key(rows: Rows) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """Return what numbers of rows add to the signature that a plan is kept under."""
    return tuple((name, (kept,)) for name, kept in rows.items())


@dataclass
class _Counter:
    """What counts the rows of batches of one shape, and the sizes that there are plans for."""

    executable: Executable | None
    inputs: Sequence[str] = ()
    rows: Mapping[str, int] = field(default_factory=dict)

    def choose(self, feeds: Mapping[str, Any]) -> Rows:
        if self.executable is None:
            return {}
        found = self.executable.run({name: feeds[name] for name in self.inputs})
        # On an accelerator this waits for all work before: the one wait of a step.
        counts = [int(found[name]) for name in self.rows]
        return {name: bucket(count, rows) for count, (name, rows) in zip(counts, self.rows.items(), strict=True)}


class RowCounts:
    """Counts rows of batches for the plans of one session.

    Each scope (the graph and the shapes that plans are made for) has a small graph of its own, compiled for the
    session's provider, that computes the counts from the batch.

    Args:
        provider: of the session.
    """

    def __init__(self, provider: ExecutionProvider) -> None:
        self._provider = provider
        self._counters: Recent[Hashable, _Counter] = Recent(_SCOPES)

    def of(self, scope: Hashable, feeds: Mapping[str, Any]) -> Rows | None:
        """Return what a batch's plan keeps; None if no plan was made in this scope yet."""
        counter = self._counters.look(scope)
        return None if counter is None else counter.choose(feeds)

    def learn(self, scope: Hashable, feeds: Mapping[str, Any], graph: ir.Model, passes: Sequence[Pass]) -> Rows:
        """Find out what can be counted in a scope, and return what the first batch's plan keeps.

        Args:
            scope: whatever tells graphs and shapes apart.
            feeds: the batch.
            graph: the specialised forward graph as the first pass that leaves out rows gets it.
            passes: those that will run.
        """
        measured = measure(graph, passes) if count_flops(graph).products >= WORTH_COUNTING else None
        if measured is None:
            counter = _Counter(None)
        else:
            model, rows = measured
            executable = self._provider.compile(model, self._provider.create_state([]))
            counter = _Counter(executable, [v.name or "" for v in model.graph.inputs], rows)
        return self._counters.put(scope, counter).choose(feeds)
