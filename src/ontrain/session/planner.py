"""The one place where a batch's sizes become a plan: looked up, or made of a structure."""

from __future__ import annotations

import functools
import time
import warnings
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Generic

import onnx_ir as ir
import torch

from ontrain.passes import Journal, Recomputation, pipeline
from ontrain.providers import ExecutionProvider
from ontrain.session.collector import collector
from ontrain.session.families import Families, ranks, sizes_of
from ontrain.session.feeds import Signature, check_feeds, check_guards
from ontrain.session.plans import PLANNING, PLANS, Plan, ShapeAndDtype, bound_plan, make_plan
from ontrain.session.recent import Recent
from ontrain.session.recompute import Compiled, recomputing
from ontrain.session.row_counts import CountedRows, KnownRows, RowCounts, Rows, Scope, plan_key

__all__ = ["Planner", "Structure"]

Key = tuple[Hashable, Signature]


@dataclass(frozen=True, kw_only=True)
class Structure:
    """What plans compute, whatever the sizes.

    Attributes:
        key: tells the structures of a session apart.
        forward_key: tells their forward graphs apart; rows are counted in these.
        model: captured graph, symbolic where the model allows.
        build: turns a specialised forward graph into what is run, and may run passes; None for the forward alone.
        outputs: names of the results to compute; None for all.
        journal: makes what says which passes may run in a plan, and writes its stages down.
        precision: the half precision that `build` lowers products to; None for none.
    """

    key: Hashable
    forward_key: Hashable
    model: ir.Model
    build: Callable[[Journal, ir.Model], ir.Model] | None = None
    outputs: tuple[str, ...] | None = None
    journal: Callable[[], Journal]
    precision: ir.DataType | None = None


class Planner(Generic[Compiled]):
    """Makes the plans of a session, and keeps those that were used last.

    The graph of a plan at new sizes is bound to them where those of plans before tell what it is: a model whose batches
    come in many sizes is planned a few times only. Any thread may ask for a plan. One thread of the process makes plans
    at a time, and of threads that want the same plan one makes it; a thread whose plan is there waits for none.

    Args:
        provider: runs the small graphs that count rows.
        compiler: makes a finished graph executable.
        device: where batches are.
        recomputation: activations that backward computes again instead of finding them in memory.
        counts_rows: whether plans are made for as many rows of a batch as reach the loss.
        accept: looks at a plan before it is kept, and raises if it may not be run.
        most: how many plans are kept.

    Attributes:
        plans: those that are kept, by the structure's key and the signature.

    Raises:
        OptionError: recomputation is asked of a provider that would save nothing by it.
    """

    def __init__(
        self,
        provider: ExecutionProvider,
        compiler: Callable[[ir.Model], Compiled],
        device: torch.device,
        *,
        recomputation: Recomputation | None = None,
        counts_rows: bool = True,
        accept: Callable[[Structure, Plan[Compiled]], None] | None = None,
        most: int = PLANS,
    ) -> None:
        self.plans: Recent[Key, Plan[Compiled]] = Recent(most)
        self._compiler, self._device, self._recomputing = compiler, device, recomputing(provider, recomputation)
        self._row_counts = RowCounts(provider, recomputes=self._recomputing is not None) if counts_rows else None
        self._accept = accept
        self._provider = provider
        self._uncounted: Recent[Key, bool] = Recent(most)
        """Structures and signatures of which no rows are counted."""
        self._families = Families()
        self._absent: Recent[Hashable, Mapping[str, ShapeAndDtype]] = Recent(most)

    def plan(self, structure: Structure, signature: Signature, feeds: Mapping[str, torch.Tensor]) -> Plan[Compiled]:
        """Return the plan for a batch, made when first asked for.

        Args:
            structure: what to compute.
            signature: names and shapes of the batch.
            feeds: the batch, in which rows are counted.

        Raises:
            InputError: the batch does not fit the graph.
            OptionError: a memory budget that this batch cannot fit.
        """
        key = structure.key, signature
        if key in self._uncounted and (plan := self.plans.look(key)) is not None:
            return plan
        plan, rows = self._look(structure, signature, feeds)
        if plan is not None and rows is not None and not rows:
            self._uncounted.put(key, True)
        if plan is None:
            with PLANNING, collector.paused():
                plan, rows = self._look(structure, signature, feeds, bind=True)
                if plan is None:
                    # Tensors of a plan outlive an inference_mode that it may be made under.
                    with torch.inference_mode(False):
                        plan = self._make(structure, signature, feeds, rows)
        return plan

    def is_settled(self, structure: Structure, signature: Signature) -> bool:
        """Return whether all batches of these sizes have one plan: it depends on no rows that are counted in them."""
        return (structure.key, signature) in self._uncounted

    def forget(self, key: Hashable) -> None:
        """Drop the plans of a structure."""
        self.plans.forget(lambda known: known[0] == key)
        self._uncounted.forget(lambda known: known[0] == key)
        self._families.forget(lambda known: isinstance(known, tuple) and known[0] == key)

    def _look(
        self, structure: Structure, signature: Signature, feeds: Mapping[str, torch.Tensor], *, bind: bool = False
    ) -> tuple[Plan[Compiled] | None, Rows | None]:
        """The plan, if it is there, and how many rows one for this batch keeps, if these can be counted yet."""
        counts = self._row_counts
        rows = {} if counts is None else counts.of(_scope(structure, signature), feeds, bind=bind)
        return None if rows is None else self.plans.look((structure.key, signature + plan_key(rows))), rows

    def _make(
        self, structure: Structure, signature: Signature, feeds: Mapping[str, torch.Tensor], rows: Rows | None
    ) -> Plan[Compiled]:
        check_feeds(structure.model.graph, feeds, self._device)
        check_guards(structure.model, signature)
        counts, scope = self._row_counts, _scope(structure, signature)
        keep: KnownRows | None = None
        if counts is not None:
            keep = KnownRows(rows) if rows is not None else CountedRows(counts, scope, feeds)
        journal, build = structure.journal(), structure.build
        journal.off |= _slower(self._provider)
        # A stage that is to be read has to be made.
        family = self._family(structure, signature, journal) if journal.silent and self._recomputing is None else None
        plan = self._bound(family, structure, signature, rows) if family is not None and rows is not None else None
        if plan is None:
            plan = make_plan(
                structure.model, signature, self._compiler,
                build=None if build is None else functools.partial(build, journal), journal=journal,
                outputs=structure.outputs, recomputing=self._recomputing, rows=keep, precision=structure.precision,
            )  # fmt: skip
            if family is not None:
                self._learn(family, structure, signature, {} if keep is None else keep.rows, plan)
        if self._accept is not None:
            self._accept(structure, plan)
        return self.plans.put((structure.key, signature + plan_key(keep.rows if keep is not None else {})), plan)

    def _bound(self, family: Hashable, structure: Structure, signature: Signature, rows: Rows) -> Plan[Compiled] | None:
        start = time.perf_counter()
        key, sizes = self._key(family, structure, signature, rows), sizes_of(signature, tuple(rows.values()))
        bound = self._families.bind(key, structure.model, sizes)
        unread = self._absent.look(structure.key)
        if bound is None or unread is None:
            return None
        numbers = iter(bound.beside)
        absent = {name: (tuple(next(numbers) for _ in shape), dtype) for name, (shape, dtype) in unread.items()}
        return bound_plan(bound.model, signature, self._compiler, absent, {"bind": time.perf_counter() - start})

    def _learn(
        self, family: Hashable, structure: Structure, signature: Signature, rows: Rows, plan: Plan[Compiled]
    ) -> None:
        self._absent.put(structure.key, plan.absent)
        beside = [size for shape, _ in plan.absent.values() for size in shape]
        key, sizes = self._key(family, structure, signature, rows), sizes_of(signature, tuple(rows.values()))
        self._families.learn(key, structure.model, sizes, plan.model, beside)

    def _family(self, structure: Structure, signature: Signature, journal: Journal) -> Hashable:
        """What tells plans apart, beside sizes and numbers of rows: passes may come and go."""
        passes = (*pipeline("forward"), *pipeline("step"))
        return structure.key, ranks(signature), journal.off, tuple(map(id, passes))

    def _key(self, family: Hashable, structure: Structure, signature: Signature, rows: Rows) -> Hashable:
        """The family of plans with such rows: leaving some out makes another graph than leaving out none."""
        counts = self._row_counts
        whole = () if counts is None else counts.whole(_scope(structure, signature), rows)
        return structure.key, family, tuple(rows), whole


def _slower(provider: ExecutionProvider) -> frozenset[str]:
    """Names of passes that would make plans slower on a provider."""
    if provider.capabilities.multiplies_bfloat16:
        return frozenset()
    names = frozenset(graph_pass.name for graph_pass in pipeline("forward") if graph_pass.multiplies_bfloat16)
    for name in names:
        warnings.warn(
            f"{provider.name} has no units for bfloat16 on this processor: products stay in float32, without {name}",
            stacklevel=2,
        )
    return names


def _scope(structure: Structure, signature: Signature) -> Scope:
    return Scope(structure.forward_key, structure.model, signature)
