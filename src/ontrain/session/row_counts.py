"""How many rows of a batch its plan must hold: counted before the plan is chosen, rounded so that plans stay few."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field

import onnx_ir as ir
import torch

from ontrain.functions import count_flops
from ontrain.graph import new_model
from ontrain.passes import RowPass, Selection, bucket, counting, serving_of
from ontrain.providers import Executable, ExecutionProvider
from ontrain.session.families import Families, ranks, sizes_of
from ontrain.session.feeds import Signature
from ontrain.session.recent import Recent

__all__ = ["WORTH_COUNTING", "CountedRows", "KnownRows", "RowCounts", "Rows", "Scope", "plan_key"]

WORTH_COUNTING = 100_000_000
"""Operations in the products of a forward pass from which on rows are counted. Counting takes some 50 µs a step, in
which a processor makes so many that nothing would be won below."""
_COUNTERS = 1024
"""Small graphs that are kept."""

Rows = Mapping[str, int]
"""How many rows a plan keeps of each selection, by its name; empty where nothing can be left out."""


def plan_key(rows: Rows) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """Return what numbers of rows add to the signature that a plan is kept under."""
    return tuple((name, (count,)) for name, count in rows.items())


@dataclass(frozen=True)
class Scope:
    """Where rows are counted alike.

    Attributes:
        key: tells forward graphs apart.
        model: captured graph.
        signature: names and shapes of the batch.
    """

    key: Hashable
    model: ir.Model = field(compare=False)
    signature: Signature


@dataclass
class _Counter:
    """What counts rows of one selection, or of several at once; without an executable there are none left to count."""

    executable: Executable | None
    inputs: Sequence[str] = ()
    rows: Mapping[str, int] = field(default_factory=dict)

    def choose(self, feeds: Mapping[str, torch.Tensor]) -> Rows:
        assert self.executable is not None
        outputs = self.executable.run({name: feeds[name] for name in self.inputs})
        # On an accelerator this waits for all work before: once a step for each counter.
        counts = [int(outputs[name]) for name in self.rows]
        return {name: bucket(count, rows) for count, (name, rows) in zip(counts, self.rows.items(), strict=True)}


class RowCounts:
    """Counts rows of batches for the plans of one session.

    Each scope has small graphs of its own, compiled for the session's provider, that compute the counts from the
    batch, one after the other: what a pass finds depends on what was left out before, so there is a graph for each
    outcome that came up. At new sizes these graphs are bound, where those at other sizes tell what they are.

    Args:
        provider: of the session.
        recomputes: whether activations are computed again. Passes over packed sequences are not counted for then: the
            kernels of these draw masks that no second computation can be given.
    """

    def __init__(self, provider: ExecutionProvider, *, recomputes: bool = False) -> None:
        self._provider = provider
        capabilities = provider.capabilities
        self._attends_sequences = capabilities.attends_sequences and not recomputes
        self._serves_sequences = capabilities.serves_sequences
        self._counters: Recent[Hashable, _Counter] = Recent(_COUNTERS)
        self._families = Families()

    def of(self, scope: Scope, feeds: Mapping[str, torch.Tensor], *, bind: bool = False) -> Rows | None:
        """Return what a batch's plan keeps; None if no plan was made in this scope for what is found on the way.

        Args:
            scope: of the batch.
            feeds: the batch.
            bind: whether counters may be bound to sizes at which there was no plan yet; one thread at a time may.
        """
        counted = dict[str, int]()
        while True:
            counter = self._counters.look((scope, plan_key(counted)))
            if counter is None and bind:
                counter = self._bound(scope, counted)
            if counter is None or counter.executable is None:
                return None if counter is None else counted
            counted.update(counter.choose(feeds))

    def whole(self, scope: Scope, rows: Rows) -> tuple[str, ...]:
        """Return the selections of which a plan that keeps so many rows leaves none out."""
        counted, whole = dict[str, int](), list[str]()
        while len(counted) < len(rows) and (counter := self._counters.look((scope, plan_key(counted)))) is not None:
            counted.update({name: rows[name] for name in counter.rows})
            whole += [name for name, total in counter.rows.items() if rows[name] == total]
        return tuple(whole)

    def count(
        self,
        scope: Scope,
        before: Rows,
        feeds: Mapping[str, torch.Tensor],
        graph: ir.Model,
        selections: Sequence[Selection],
    ) -> Rows:
        """Count the rows of selections in a batch of which `before` was counted, and remember how."""
        key = scope, plan_key(before)
        counter = self._counters.look(key)
        if counter is None or counter.executable is None:
            model, rows = counting(graph, selections), {selection.name: selection.rows for selection in selections}
            counter = self._counters.put(key, self._counter(model, rows))
            self._learn(scope, before, model, rows)
        return counter.choose(feeds)

    def finish(self, scope: Scope, rows: Rows) -> None:
        """Remember that after these rows there are none left to count."""
        key = scope, plan_key(rows)
        if self._counters.look(key) is None:
            self._counters.put(key, _Counter(None))
            self._learn(scope, rows, new_model([], "rows"), {})

    def _learn(self, scope: Scope, before: Rows, model: ir.Model, rows: Rows) -> None:
        sizes = sizes_of(scope.signature, tuple(before.values()))
        self._families.learn(self._stage(scope, before), scope.model, sizes, model, tuple(rows.values()))

    def _bound(self, scope: Scope, before: Rows) -> _Counter | None:
        sizes = sizes_of(scope.signature, tuple(before.values()))
        bound = self._families.bind(self._stage(scope, before), scope.model, sizes)
        if bound is None:
            return None
        names = [value.name or "" for value in bound.model.graph.outputs]
        rows = dict(zip(names, bound.beside, strict=True))
        counter = self._counter(bound.model, rows) if rows else _Counter(None)
        return self._counters.put((scope, plan_key(before)), counter)

    def _stage(self, scope: Scope, before: Rows) -> Hashable:
        """What tells graphs that count apart, beside sizes."""
        return scope.key, ranks(scope.signature), tuple(before), self.whole(scope, before)

    def asks_in_vain(self, row_pass: RowPass, graph: ir.Graph) -> bool:
        """Whether a pass is not worth while for a graph on this provider."""
        attends = self._attends_sequences if serving_of(graph) is None else self._serves_sequences
        return row_pass.attends_sequences and not attends

    def _counter(self, model: ir.Model, rows: Rows) -> _Counter:
        executable = self._provider.compile(model, self._provider.create_state([]))
        return _Counter(executable, [v.name or "" for v in model.graph.inputs], rows)


class KnownRows:
    """Keeps as many rows as were counted in a batch like this one.

    Attributes:
        rows: how many the plan keeps, by selection.
    """

    def __init__(self, rows: Rows) -> None:
        self.rows = rows

    def begin(self, graph: ir.Model) -> None:
        """Look at the specialised forward graph as the first pass gets it that leaves out rows."""

    def __call__(self, row_pass: RowPass, model: ir.Model, selections: Sequence[Selection]) -> list[int]:
        """Return how many rows are kept of each selection; of one that was not counted, all."""
        return [min(self.rows.get(selection.name, selection.rows), selection.rows) for selection in selections]

    def finish(self) -> None:
        """Learn that all passes have run."""


class CountedRows(KnownRows):
    """Counts in the first batch of a scope, while passes find on its plan's graph what there is to count."""

    def __init__(self, counts: RowCounts, scope: Scope, feeds: Mapping[str, torch.Tensor]) -> None:
        self._counts, self._scope, self._feeds = counts, scope, feeds
        self._first: ir.Model | None = None
        self._worth_counting = False
        self._counted = dict[str, int]()
        super().__init__(self._counted)

    def begin(self, graph: ir.Model) -> None:
        """Keep the graph: whether counting is worth while is asked once a pass finds rows, which few graphs have."""
        self._first = graph

    def __call__(self, row_pass: RowPass, model: ir.Model, selections: Sequence[Selection]) -> list[int]:
        """Count the rows of selections that a pass has found."""
        if self._is_worth_counting() and not self._counts.asks_in_vain(row_pass, model.graph):
            self._counted.update(self._counts.count(self._scope, self._counted, self._feeds, model, selections))
        return super().__call__(row_pass, model, selections)

    def _is_worth_counting(self) -> bool:
        if self._first is not None:
            self._worth_counting = count_flops(self._first).products >= WORTH_COUNTING
            self._first = None
        return self._worth_counting

    def finish(self) -> None:
        """Remember that there are no more rows to count in this scope."""
        self._counts.finish(self._scope, self._counted)
