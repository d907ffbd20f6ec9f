"""How many rows of a batch its plan must hold: counted before the plan is chosen, rounded so that plans stay few."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import onnx_ir as ir

from ontrain.functions.cost import count_flops
from ontrain.passes import Pass
from ontrain.passes.rows import RowPass, Selection, bucket, counting, given
from ontrain.providers import Executable, ExecutionProvider
from ontrain.session.recent import Recent

__all__ = ["WORTH_COUNTING", "RowCounts", "Rows", "plan_key"]

WORTH_COUNTING = 100_000_000
"""Operations in the products of a forward pass from which on rows are counted. Counting takes some 50 µs a step, in
which a processor makes so many that nothing would be won below."""
_COUNTERS = 1024
"""Small graphs that are kept."""

Rows = Mapping[str, int]
"""How many rows a plan keeps of each selection, by its name; empty where nothing can be left out."""


def plan_key(rows: Rows) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """Return what numbers of rows add to the signature that a plan is kept under."""
    return tuple((name, (kept,)) for name, kept in rows.items())


@dataclass
class _Counter:
    """What counts rows of one selection, or of several at once; without an executable there are none left to count."""

    executable: Executable | None
    inputs: Sequence[str] = ()
    rows: Mapping[str, int] = field(default_factory=dict)

    def choose(self, feeds: Mapping[str, Any]) -> Rows:
        assert self.executable is not None
        found = self.executable.run({name: feeds[name] for name in self.inputs})
        # On an accelerator this waits for all work before: once a step for each counter.
        counts = [int(found[name]) for name in self.rows]
        return {name: bucket(count, rows) for count, (name, rows) in zip(counts, self.rows.items(), strict=True)}


class RowCounts:
    """Counts rows of batches for the plans of one session.

    Each scope (the graph and the shapes that plans are made for) has small graphs of its own, compiled for the
    session's provider, that compute the counts from the batch, one after the other: what a pass finds depends on what
    was left out before, so there is a graph for each outcome that came up.

    Args:
        provider: of the session.
        recomputes: whether activations are computed again. Passes that ask for something of a provider are not counted
            for then: its kernels draw masks that no second computation can be given.
    """

    def __init__(self, provider: ExecutionProvider, *, recomputes: bool = False) -> None:
        self._provider, self._recomputes = provider, recomputes
        self._counters: Recent[Hashable, _Counter] = Recent(_COUNTERS)

    def of(self, scope: Hashable, feeds: Mapping[str, Any]) -> Rows | None:
        """Return what a batch's plan keeps; None if no plan was made in this scope for what is found on the way."""
        kept = dict[str, int]()
        while (counter := self._counters.look((scope, plan_key(kept)))) is not None:
            if counter.executable is None:
                return kept
            kept.update(counter.choose(feeds))
        return None

    def learn(self, scope: Hashable, feeds: Mapping[str, Any], graph: ir.Model, passes: Sequence[Pass]) -> Rows:
        """Find out what can be counted in a scope, and return what the first batch's plan keeps.

        Args:
            scope: whatever tells graphs and shapes apart.
            feeds: the batch.
            graph: the specialised forward graph as the first pass that leaves out rows gets it.
            passes: those that will run.
        """
        worth = count_flops(graph).products >= WORTH_COUNTING
        passes = [one for one in passes if worth and (one.asks is None or self._has(one.asks))]
        last = max((i for i, one in enumerate(passes) if isinstance(one, RowPass)), default=-1)
        kept = dict[str, int]()
        for number, one in enumerate(passes[: last + 1]):
            before, found = graph, self._uncounted(one, graph, kept)
            while found:
                # What is left out for one selection may change what another is: they are counted in turn.
                some = found if isinstance(one, RowPass) and one.at_once else found[:1]
                key = scope, plan_key(kept)
                counter = self._counters.look(key)
                if counter is None or counter.executable is None:
                    counter = self._counters.put(key, self._counter(graph, some))
                kept.update(counter.choose(feeds))
                if len(found) == len(some):
                    break
                with given(kept):
                    graph, _ = one.apply(before)
                found = self._uncounted(one, graph, kept)
            if number < last:
                with given(kept):
                    graph, _ = one.apply(before)
        self._counters.put((scope, plan_key(kept)), _Counter(None))
        return kept

    def _uncounted(self, one: Pass, graph: ir.Model, kept: Rows) -> list[Selection]:
        selections = one.selections(graph) if isinstance(one, RowPass) else []
        return [selection for selection in selections if selection.name not in kept]

    def _counter(self, graph: ir.Model, selections: Sequence[Selection]) -> _Counter:
        model = counting(graph, selections)
        executable = self._provider.compile(model, self._provider.create_state([]))
        rows = {one.name: one.rows for one in selections}
        return _Counter(executable, [v.name or "" for v in model.graph.inputs], rows)

    def _has(self, attribute: str) -> bool:
        return bool(getattr(self._provider, attribute, False)) and not self._recomputes
