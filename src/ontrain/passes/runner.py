"""Runs passes in order: timed, verified, disabled by name, stopped after the n-th, and written down."""

from __future__ import annotations

import time
from collections.abc import Sequence

import onnx_ir as ir

from ontrain.graph import describe, source_of, verify, verify_requested
from ontrain.passes.infra import Fuel, Pass, PassReport, limited
from ontrain.passes.journal import Journal
from ontrain.passes.pipeline import check_names, pipeline
from ontrain.passes.rows import Keep, RowPass
from ontrain.passes.serving import serving_of

__all__ = ["run_passes"]


def run_passes(
    model: ir.Model,
    passes: Sequence[Pass],
    *,
    disabled: Sequence[str] = (),
    stage: str = "forward",
    journal: Journal | None = None,
    keep: Keep | None = None,
) -> tuple[ir.Model, list[PassReport]]:
    """Run the passes in order.

    Args:
        model: left untouched.
        passes: what to run.
        disabled: names to leave out; `ONTRAIN_DISABLE_PASSES` (comma-separated) adds to them.
        stage: what the passes belong to, for reports and file names.
        journal: counts passes and writes graphs over several calls; by default one for this call.
        keep: says how many rows stay where a pass may leave some out; None for all.

    Environment: `ONTRAIN_VERIFY=1` verifies what each pass makes; `ONTRAIN_PASS_LIMIT=n` stops after the n-th pass of
    the journal, `n:k` after k rewrites of the n-th; `ONTRAIN_DUMP=folder` writes the graph after each pass.

    Raises:
        GraphError: a pass left an invalid graph (only when verifying).
        OptionError: a name to leave out is that of no pass, or an environment variable is malformed.
    """
    if journal is None:
        with Journal(model.graph.name or "graph", disabled=disabled) as own:
            return run_passes(model, passes, disabled=disabled, stage=stage, journal=own, keep=keep)
    off = journal.off | set(disabled)
    check_names(sorted(off), [*pipeline("forward"), *pipeline("step"), *pipeline("inference"), *passes])
    reports: list[PassReport] = []
    verified = tidy = None
    for graph_pass in passes:
        name, fuel = graph_pass.name, Fuel(journal.fuel(), tidy=tidy)
        if name in off or fuel.left <= 0 or (graph_pass.serves and serving_of(model.graph) is None):
            continue
        before, start = len(model.graph), time.perf_counter()
        with limited(fuel):
            model, changed = (
                graph_pass.apply(model, keep) if isinstance(graph_pass, RowPass) else graph_pass.apply(model)
            )
        seconds, tidy = time.perf_counter() - start, fuel.tidy
        number = len(journal.reports) + 1
        report = PassReport(
            name, changed, before, len(model.graph), seconds, stage, number, fuel.used,
            None if fuel.node is None else describe(fuel.node), None if fuel.node is None else source_of(fuel.node),
            fuel.notes, dict(fuel.refusals),
        )  # fmt: skip
        reports.append(report)
        journal.reports.append(report)
        if verify_requested() and (changed or model is not verified):
            verify(model, after=f"pass {name}")
            verified = model
        journal.stage(f"{stage}-{name}", model)
    return model, reports
