"""From a captured graph and a batch's shapes to an executable: specialise, rewrite, differentiate, compile."""

from __future__ import annotations

import gc
import os
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import onnx_ir as ir

from ontrain.capture.phases import tell_phases
from ontrain.functions import without_own_backwards
from ontrain.graph import check_sizes, drop_outputs, specialise, verify, verify_requested
from ontrain.locks import Lock
from ontrain.passes import Journal, Pass, PassReport, pipeline, run_passes
from ontrain.passes.recompute import Recomputation
from ontrain.passes.rows import RowPass, given
from ontrain.session.feeds import Signature
from ontrain.session.memory import memory_limit
from ontrain.session.recompute import Recomputed, fit

__all__ = ["PLANNING", "PLANS", "Plan", "make_plan"]

PLANS = 64
"""Plans that a session keeps: one costs about a megabyte and some tenths of a second to make."""
PLANNING = Lock()
"""Held while a plan is made, of any session: what is measured for one is not measured beside the making of another.

Who finds no plan takes it, looks again, and then makes the plan: of threads that want the same one makes it.
"""


Compiled = TypeVar("Compiled")
CountRows = Callable[[ir.Model, Sequence[Pass]], Mapping[str, int]]
"""count(graph, passes): how many rows the passes keep of each of their selections in the graph."""


@dataclass
class Plan(Generic[Compiled]):
    """An executable for one signature, the graph it runs, the seconds that making it took, and how often it ran.

    Attributes:
        absent: outputs of the captured graph that this one does not compute, by name.
        recomputed: what is computed a second time to save memory; None where nobody asked.
    """

    model: ir.Model
    executable: Compiled
    seconds: dict[str, float] = field(default_factory=dict)
    passes: list[PassReport] = field(default_factory=list)
    runs: int = 0
    absent: dict[str, ir.Value] = field(default_factory=dict)
    recomputed: Recomputed | None = None


def make_plan(
    model: ir.Model,
    signature: Signature,
    compiler: Callable[[ir.Model], Compiled],
    *,
    build: Callable[[ir.Model], ir.Model] | None = None,
    journal: Journal | None = None,
    outputs: Collection[str] | None = None,
    recomputation: Recomputation | None = None,
    rows: CountRows | None = None,
) -> Plan[Compiled]:
    """Make the plan for a signature.

    Args:
        model: captured graph, symbolic where the model allows.
        signature: the batch's shapes.
        compiler: makes the finished graph executable.
        build: turns the specialised forward graph into the step graph; None for evaluation.
        journal: says which passes may run, and writes the stages down; by default one made from the environment.
        outputs: names of the results to compute; None for all.
        recomputation: what backward shall compute again instead of finding it in memory.
        rows: says how many rows the plan keeps where a pass may leave some out; None for all.

    Raises:
        OptionError: a memory budget that this batch cannot fit.
    """
    if journal is None:
        journal = Journal("eval" if build is None else "step")
    with PLANNING, _collector.paused(), journal:
        plan = _make_plan(model, signature, compiler, build, journal, outputs, recomputation, rows)
    sizes = ", ".join(f"{name} {list(shape)}" for name, shape in signature)
    tell_phases(f"planned {'a forward' if build is None else 'a step'} for {sizes}", plan.seconds)
    return plan


def _forward_passes(graph: ir.Model, journal: Journal, rows: CountRows | None) -> tuple[ir.Model, list[PassReport]]:
    """Run the passes of the forward stage, those that leave out rows with the batch's numbers of them."""
    passes = pipeline("forward")
    first = next((i for i, one in enumerate(passes) if isinstance(one, RowPass)), len(passes))
    graph, reports = run_passes(graph, passes[:first], stage="forward", journal=journal)
    running = [one for one in passes[first:] if one.name not in journal.off]
    counted = given(rows(graph, running)) if rows is not None else nullcontext()
    with counted:
        graph, more = run_passes(graph, passes[first:], stage="forward", journal=journal)
    return graph, reports + more


class _Collector:
    """The cyclic collector, held while a plan is made: it would walk all of torch's and the model's objects each time.

    There is one for all threads, so whoever comes first stops it and whoever leaves last lets it go on. A forked child
    has none of the threads that would.
    """

    def __init__(self) -> None:
        self._lock, self._holders, self._running = Lock(), list[int](), False
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._forked)

    @contextmanager
    def paused(self) -> Iterator[None]:
        with self._lock:
            if not self._holders:
                self._running = gc.isenabled()
                gc.disable()
            self._holders.append(threading.get_ident())
        try:
            yield
        finally:
            with self._lock:
                self._holders.remove(threading.get_ident())
                self._go_on()

    def _go_on(self) -> None:
        if not self._holders and self._running:
            gc.enable()

    def _forked(self) -> None:
        if self._holders:
            self._holders = [one for one in self._holders if one == threading.get_ident()]
            self._go_on()


_collector = _Collector()


def _make_plan(
    model: ir.Model,
    signature: Signature,
    compiler: Callable[[ir.Model], Compiled],
    build: Callable[[ir.Model], ir.Model] | None,
    journal: Journal,
    outputs: Collection[str] | None,
    recomputation: Recomputation | None,
    rows: CountRows | None,
) -> Plan[Compiled]:
    seconds = journal.seconds
    clock = time.perf_counter

    journal.stage("captured", model)
    journal.milestone("captured_path", model)
    start = clock()
    graph = specialise(model, dict(signature))
    absent = {} if outputs is None else drop_outputs(graph.graph, outputs)
    if build is None:
        graph = without_own_backwards(graph)
    check_sizes(graph, memory_limit())
    seconds["specialise"] = clock() - start
    journal.stage("specialised", graph)

    start = clock()
    graph, reports = _forward_passes(graph, journal, rows)
    seconds["forward passes"] = clock() - start
    journal.milestone("model_after_graph_transforms_path", graph)

    if build is not None:
        start = clock()
        graph = without_own_backwards(build(graph))
        seconds["differentiate"] = clock() - start
        if verify_requested():
            verify(graph, after="building the step")
        journal.stage("step", graph)
        journal.milestone("model_with_training_graph_path", graph)
        graph, more = run_passes(graph, pipeline("step"), stage="step", journal=journal)
        reports += more
        seconds["step passes"] = sum(one.seconds for one in more)
        journal.milestone("model_with_training_graph_after_optimization_path", graph)

    journal.stage("provider", graph)
    start = clock()
    executable = compiler(graph)
    seconds["compile"] = clock() - start
    recomputed = None
    if recomputation is not None and recomputation.asked and build is not None:
        start, before = clock(), len(journal.reports)
        graph, executable, recomputed = fit(graph, executable, recomputation, compiler, journal)
        reports += journal.reports[before:]
        seconds["recompute"] = clock() - start
        journal.milestone("model_with_training_graph_after_optimization_path", graph)
    return Plan(graph, executable, seconds, reports, absent=absent, recomputed=recomputed)
