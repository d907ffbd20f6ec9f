"""From a captured graph and a batch's shapes to an executable: specialise, rewrite, differentiate, compile."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import onnx_ir as ir

from ontrain.graph import check_sizes, specialise, verify, verify_requested
from ontrain.passes import Journal, PassReport, pipeline, run_passes
from ontrain.session.feeds import Signature
from ontrain.session.memory import memory_limit

__all__ = ["Plan", "make_plan"]


Compiled = TypeVar("Compiled")


@dataclass
class Plan(Generic[Compiled]):
    """An executable for one signature, the graph it runs, the seconds that making it took, and how often it ran."""

    model: ir.Model
    executable: Compiled
    seconds: dict[str, float] = field(default_factory=dict)
    passes: list[PassReport] = field(default_factory=list)
    runs: int = 0


def make_plan(
    model: ir.Model,
    signature: Signature,
    compiler: Callable[[ir.Model], Compiled],
    *,
    build: Callable[[ir.Model], ir.Model] | None = None,
    journal: Journal | None = None,
) -> Plan[Compiled]:
    """Make the plan for a signature.

    Args:
        model: captured graph, symbolic where the model allows.
        signature: the batch's shapes.
        compiler: makes the finished graph executable.
        build: turns the specialised forward graph into the step graph; None for evaluation.
        journal: says which passes may run, and writes the stages down; by default one made from the environment.
    """
    if journal is None:
        journal = Journal("eval" if build is None else "step")
    with _collector_paused(), journal:
        return _make_plan(model, signature, compiler, build, journal)


@contextmanager
def _collector_paused() -> Iterator[None]:
    """Hold the cyclic collector: it would walk all of torch's and the model's objects several times a plan."""
    running = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if running:
            gc.enable()


def _make_plan(
    model: ir.Model,
    signature: Signature,
    compiler: Callable[[ir.Model], Compiled],
    build: Callable[[ir.Model], ir.Model] | None,
    journal: Journal,
) -> Plan[Compiled]:
    seconds = journal.seconds
    clock = time.perf_counter

    journal.stage("captured", model)
    journal.milestone("captured_path", model)
    start = clock()
    graph = specialise(model, dict(signature))
    check_sizes(graph, memory_limit())
    seconds["specialise"] = clock() - start
    journal.stage("specialised", graph)

    graph, reports = run_passes(graph, pipeline("forward"), stage="forward", journal=journal)
    seconds["forward passes"] = sum(one.seconds for one in reports)
    journal.milestone("model_after_graph_transforms_path", graph)

    if build is not None:
        start = clock()
        graph = build(graph)
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
    return Plan(graph, executable, seconds, reports)
