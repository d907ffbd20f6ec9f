"""From a captured graph and a batch's shapes to an executable: specialise, rewrite, differentiate, compile."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Generic

import onnx_ir as ir
import torch

from ontrain.autodiff import asks_for_derivatives, with_derivatives
from ontrain.capture import tell_phases, tensor_dtype
from ontrain.functions import without_own_backwards
from ontrain.graph import adjoint_of, check_sizes, drop_outputs, specialise, static_dims, verify, verify_requested
from ontrain.locks import Lock
from ontrain.passes import Journal, PassReport, RowPass, announce, pipeline, run_passes
from ontrain.session.collector import collector
from ontrain.session.feeds import Signature
from ontrain.session.memory_limit import memory_limit
from ontrain.session.recompute import Compiled, Recomputed, Recomputing, fit
from ontrain.session.row_counts import KnownRows

__all__ = ["PLANNING", "PLANS", "Plan", "ShapeAndDtype", "bound_plan", "make_plan"]

PLANS = 64
"""Plans that a session keeps: one costs about a megabyte and some tenths of a second to make."""
PLANNING = Lock()
"""Held while a plan is made, of any session: what is measured for one is not measured beside the making of another.

Who finds no plan takes it, looks again, and then makes the plan: of threads that want the same one makes it.
"""


ShapeAndDtype = tuple[tuple[int, ...], torch.dtype]


@dataclass
class Plan(Generic[Compiled]):
    """An executable for one signature, the graph it runs, the seconds that making it took, and how often it ran.

    Attributes:
        absent: shape and dtype of each output of the captured graph that this one does not compute, by name.
        adjoints: the inputs that bring adjoints, by the names of the outputs that these belong to.
        recomputed: what is computed a second time to save memory; None where nobody asked.
    """

    model: ir.Model
    executable: Compiled
    seconds: dict[str, float] = field(default_factory=dict)
    passes: list[PassReport] = field(default_factory=list)
    runs: int = 0
    absent: Mapping[str, ShapeAndDtype] = field(default_factory=dict)
    adjoints: Mapping[str, str] = field(default_factory=dict)
    recomputed: Recomputed | None = None


def make_plan(
    model: ir.Model,
    signature: Signature,
    compiler: Callable[[ir.Model], Compiled],
    *,
    build: Callable[[ir.Model], ir.Model] | None = None,
    journal: Journal | None = None,
    outputs: Collection[str] | None = None,
    recomputing: Recomputing | None = None,
    rows: KnownRows | None = None,
    precision: ir.DataType | None = None,
) -> Plan[Compiled]:
    """Make the plan for a signature.

    Args:
        model: captured graph, symbolic where the model allows.
        signature: the batch's shapes.
        compiler: makes the finished graph executable.
        build: turns the specialised forward graph into the step graph; None for evaluation.
        journal: says which passes may run, and writes the stages down; by default one made from the environment.
        outputs: names of the results to compute; None for all.
        recomputing: what backward shall compute again instead of finding it in memory.
        rows: how many the plan keeps where a pass may leave some out; None for all.
        precision: the half precision that `build` lowers products to; None for none.

    Raises:
        OptionError: a memory budget that this batch cannot fit.
    """
    if journal is None:
        journal = Journal("eval" if build is None else "step")
    with PLANNING, collector.paused(), journal:
        plan = _make_plan(model, signature, compiler, build, journal, outputs, recomputing, rows, precision)
    tell_phases(f"planned {'a forward' if build is None else 'a step'} for {_written(signature)}", plan.seconds)
    return plan


def _forward_passes(graph: ir.Model, journal: Journal, rows: KnownRows | None) -> tuple[ir.Model, list[PassReport]]:
    """Run the passes of the forward stage, those that leave out rows with the batch's numbers of them."""
    passes = pipeline("forward")
    first = next((i for i, graph_pass in enumerate(passes) if isinstance(graph_pass, RowPass)), len(passes))
    graph, reports = run_passes(graph, passes[:first], stage="forward", journal=journal)
    if rows is not None:
        rows.begin(graph)
    graph, more = run_passes(graph, passes[first:], stage="forward", journal=journal, keep=rows)
    if rows is not None:
        rows.finish()
    return graph, reports + more


def _make_plan(
    model: ir.Model,
    signature: Signature,
    compiler: Callable[[ir.Model], Compiled],
    build: Callable[[ir.Model], ir.Model] | None,
    journal: Journal,
    outputs: Collection[str] | None,
    recomputing: Recomputing | None,
    rows: KnownRows | None,
    precision: ir.DataType | None,
) -> Plan[Compiled]:
    seconds = journal.seconds
    journal.stage("captured", model)
    journal.milestone("captured_path", model)
    with _timed(seconds, "specialise"):
        graph, absent = _specialised(model, signature, outputs, keep_backwards=build is not None)
        if precision is not None:
            announce(graph, precision)
    journal.stage("specialised", graph)
    with _timed(seconds, "forward passes"):
        graph, reports = _forward_passes(graph, journal, rows)
    journal.milestone("model_after_graph_transforms_path", graph)
    if build is not None:
        graph, more = _step(graph, build, journal)
        reports += more
    journal.stage("provider", graph)
    with _timed(seconds, "compile"):
        executable = compiler(graph)
    recomputed = None
    if recomputing is not None and build is not None:
        before = len(journal.reports)
        with _timed(seconds, "recompute"):
            graph, executable, recomputed = fit(graph, executable, recomputing, compiler, journal)
        reports += journal.reports[before:]
        journal.milestone("model_with_training_graph_after_optimization_path", graph)
    return Plan(
        graph, executable, seconds, reports, absent=absent, adjoints=_adjoints(graph), recomputed=recomputed
    )  # fmt: skip


def _specialised(
    model: ir.Model, signature: Signature, outputs: Collection[str] | None, *, keep_backwards: bool
) -> tuple[ir.Model, dict[str, ShapeAndDtype]]:
    """Return the graph of a signature's sizes, and what is known of the outputs that it leaves out."""
    graph = specialise(model, dict(signature))
    if asks_for_derivatives(graph.graph):
        graph = with_derivatives(graph)
    dropped = {} if outputs is None else drop_outputs(graph.graph, outputs)
    absent = {name: _shape_and_dtype(value) for name, value in dropped.items()}
    if not keep_backwards:
        graph = without_own_backwards(graph)
    check_sizes(graph, memory_limit())
    return graph, absent


def _step(
    graph: ir.Model, build: Callable[[ir.Model], ir.Model], journal: Journal
) -> tuple[ir.Model, list[PassReport]]:
    """Turn a forward graph into that of a step, and run the passes of its stage."""
    with _timed(journal.seconds, "differentiate"):
        graph = without_own_backwards(build(graph))
    if verify_requested():
        verify(graph, after="building the step")
    journal.stage("step", graph)
    journal.milestone("model_with_training_graph_path", graph)
    graph, reports = run_passes(graph, pipeline("step"), stage="step", journal=journal)
    journal.seconds["step passes"] = sum(report.seconds for report in reports)
    journal.milestone("model_with_training_graph_after_optimization_path", graph)
    return graph, reports


@contextmanager
def _timed(seconds: dict[str, float], phase: str) -> Iterator[None]:
    """Write down what a phase takes."""
    start = time.perf_counter()
    yield
    seconds[phase] = time.perf_counter() - start


def bound_plan(
    model: ir.Model, signature: Signature, compiler: Callable[[ir.Model], Compiled],
    absent: Mapping[str, ShapeAndDtype], seconds: dict[str, float],
) -> Plan[Compiled]:  # fmt: skip
    """Make the plan for a signature of the graph that the provider is to run.

    Its sizes lie between those of plans that were made; what fits into memory was looked at then. `seconds` is what
    the graph took, by phase.
    """
    if verify_requested():
        verify(model, after="binding it to sizes")
    with PLANNING, _timed(seconds, "compile"):
        executable = compiler(model)
    plan = Plan(model, executable, seconds, absent=absent, adjoints=_adjoints(model))
    tell_phases(f"bound a plan to {_written(signature)}", seconds)
    return plan


def _adjoints(model: ir.Model) -> dict[str, str]:
    return {name: value.name or "" for value in model.graph.inputs if (name := adjoint_of(value)) is not None}


def _written(signature: Signature) -> str:
    return ", ".join(f"{name} {list(shape)}" for name, shape in signature)


def _shape_and_dtype(value: ir.Value) -> ShapeAndDtype:
    assert value.dtype is not None
    return static_dims(value), tensor_dtype(value.dtype)
