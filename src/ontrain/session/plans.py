"""From a captured graph and a batch's shapes to an executable: specialise, rewrite, differentiate, compile."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import onnx_ir as ir

from ontrain.graph import specialise, verify, verify_requested
from ontrain.passes import FORWARD_PASSES, STEP_PASSES, PassReport, run_passes
from ontrain.providers import Executable, ExecutionProvider, State
from ontrain.session.feeds import Signature

__all__ = ["Plan", "make_plan"]


@dataclass
class Plan:
    """An executable for one signature, the graph it runs, the seconds that making it took, and how often it ran."""

    model: ir.Model
    executable: Executable
    seconds: dict[str, float] = field(default_factory=dict)
    passes: list[PassReport] = field(default_factory=list)
    runs: int = 0


def make_plan(
    model: ir.Model,
    signature: Signature,
    provider: ExecutionProvider,
    state: State,
    *,
    build: Callable[[ir.Model], ir.Model] | None = None,
    disabled: Sequence[str] = (),
) -> Plan:
    """Make the plan for a signature.

    Args:
        model: captured graph, symbolic where the model allows.
        signature: the batch's shapes.
        provider: what compiles it.
        state: the resident tensors.
        build: turns the specialised forward graph into the step graph; None for evaluation.
        disabled: names of passes to leave out.
    """
    with _collector_paused():
        return _make_plan(model, signature, provider, state, build, disabled)


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
    provider: ExecutionProvider,
    state: State,
    build: Callable[[ir.Model], ir.Model] | None,
    disabled: Sequence[str],
) -> Plan:
    seconds: dict[str, float] = {}
    clock = time.perf_counter

    start = clock()
    graph = specialise(model, dict(signature))
    seconds["specialise"] = clock() - start

    start = clock()
    graph, reports = run_passes(graph, FORWARD_PASSES, disabled=disabled)
    seconds["forward passes"] = clock() - start

    if build is not None:
        start = clock()
        graph = build(graph)
        seconds["differentiate"] = clock() - start
        if verify_requested():
            verify(graph, after="building the step")
        start = clock()
        graph, more = run_passes(graph, STEP_PASSES, disabled=disabled)
        reports += more
        seconds["step passes"] = clock() - start

    start = clock()
    executable = provider.compile(graph, state)
    seconds["compile"] = clock() - start
    return Plan(graph, executable, seconds, reports)
