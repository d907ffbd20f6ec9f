"""Reports on a terminal: tables for people, JSON and Markdown for programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, is_dataclass
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ontrain.errors import OntrainError
from ontrain.units import byte_text

if TYPE_CHECKING:
    # They bring torch, and `ontrain --help` shall be quick.
    from ontrain.passes import Finding
    from ontrain.session.check import CheckReport, Cost, OperatorSupport, Problem

__all__ = [
    "console_of", "fail", "print_finding", "print_json", "print_markdown", "print_operators",
    "print_report",
]  # fmt: skip

_SHOWN_PROBLEMS = 5
_PLAIN_WIDTH = 160
"""Columns where the output is no terminal: a table that is piped on should not be squeezed into eighty."""


def console_of(*, stderr: bool = False) -> Console:
    """Return a console for stdout or stderr, wide where that is no terminal."""
    stream = sys.stderr if stderr else sys.stdout
    return Console(stderr=stderr, highlight=False, width=None if stream.isatty() else _PLAIN_WIDTH)


def fail(error: OntrainError) -> None:
    """Print an error on stderr."""
    console_of(stderr=True).print(f"[bold red]error:[/] {escape(str(error))}", soft_wrap=True)


def print_json(content: Any) -> None:
    """Print a dataclass, a list of them, or plain values."""

    def plain(item: Any) -> Any:
        return asdict(item) if is_dataclass(item) and not isinstance(item, type) else item

    cells = [plain(entry) for entry in content] if isinstance(content, list) else plain(content)
    print(json.dumps(cells, indent=1, allow_nan=False))


def print_report(report: CheckReport, *, verbose: bool = False) -> None:
    """Print what `ontrain check MODEL` found."""
    console = console_of()
    if report.inputs:
        shapes = ", ".join(f"{name}{list(shape)}" for name, shape in report.inputs.items())
        console.print(f"[bold]{escape(report.subject)}[/]: {escape(shapes)}", soft_wrap=True)
        assumed = [name for name, size in report.sizes.items() if size == 1]
        if assumed:
            console.print(f"  {', '.join(assumed)} taken as 1; --dim NAME=SIZE sets a size", soft_wrap=True)
    if report.loss is not None:
        console.print(f"  loss: {escape(_loss(report))}", soft_wrap=True)
    if report.operators:
        console.print(_operator_table(report))
    if report.parameters:
        _print_parameters(console, report, verbose)
    if report.cost is not None:
        _print_cost(console, report.cost, report.optimizer)
    _print_problems(console, report.problems, verbose)
    if report.trainable:
        console.print("[bold green]can be trained[/]")
    else:
        console.print(f"[bold red]cannot be trained[/]: {len(report.problems)} problem(s)")


def _loss(report: CheckReport) -> str:
    if report.loss_origin == "mean":
        return "the mean of the first output stands in; --loss names an output, or a loss to add"
    return f"{report.loss}" + (" (added)" if report.loss_origin == "added" else "")


def _operator_table(report: CheckReport) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False)
    for heading in ("operator", "count", "runs on", "gradient"):
        table.add_column(heading, justify="right" if heading == "count" else "left")
    table.add_column("why", overflow="fold")
    for row in report.operators:
        runs = row.provider or f"[red]not on {report.provider}[/]"
        gradient = f"[red]{row.gradient}[/]" if row.gradient == "none" else row.gradient
        blocked = row.provider is None or row.gradient in ("none", "zero")
        told = row.reason if blocked or row.gradient == "body" else ""
        table.add_row(escape(row.operator), str(row.count), runs, gradient, escape(told))
    return table


def _print_parameters(console: Console, report: CheckReport, verbose: bool) -> None:
    trained = [parameter for parameter in report.parameters if parameter.trainable and parameter.reached]
    idle = [parameter for parameter in report.parameters if parameter.trainable and not parameter.reached]
    frozen = [parameter for parameter in report.parameters if not parameter.trainable]
    text = f"parameters: {len(trained)} to train, {_count(trained):,} numbers"
    text += f"; {len(frozen)} frozen, {_count(frozen):,}" if frozen else ""
    console.print(text)
    if idle:
        names = ", ".join(parameter.name for parameter in idle)
        console.print(f"  the loss does not depend on {escape(names)}", soft_wrap=True)
    if verbose:
        for parameter in report.parameters:
            what = "" if parameter.trainable else " (frozen)"
            console.print(
                f"  {escape(parameter.name)}: {escape(f'{parameter.dtype}{list(parameter.shape)}')}{what}",
                soft_wrap=True,
            )


def _count(parameters: Sequence[Any]) -> int:
    total = 0
    for parameter in parameters:
        numbers = 1
        for dim in parameter.shape:
            numbers *= dim
        total += numbers
    return total


def _print_cost(console: Console, cost: Cost, optimizer: str) -> None:
    for name, total, products in (
        ("forward", cost.forward_flop, cost.forward_product_flop),
        ("backward and update", cost.backward_flop, cost.backward_product_flop),
    ):
        console.print(f"{name}: {_flop(total)}, of which {_flop(products)} in products")
    how = "as planned" if cost.working_is_planned else "estimated"
    console.print(
        f"memory of a step: {byte_text(cost.total_bytes)} = parameters and buffers {byte_text(cost.parameter_bytes)}"
        f" + state of {optimizer} {byte_text(cost.optimizer_bytes)}"
        f" + working memory {byte_text(cost.working_bytes)} ({how})",
        soft_wrap=True,
    )


def _flop(count: int) -> str:
    value, unit = float(count), ""
    for unit in ("", "k", "M", "G", "T", "P"):
        if value < 1000 or unit == "P":
            break
        value /= 1000
    return f"{value:.4g} {unit}FLOP"


def _print_problems(console: Console, problems: Sequence[Problem], verbose: bool) -> None:
    shown = problems if verbose else problems[:_SHOWN_PROBLEMS]
    for row in shown:
        console.print(f"[red]{row.kind}:[/] {escape(row.message)}", soft_wrap=True)
        for label, text in (
            ("node", row.node),
            ("source", row.source),
            ("reason", row.reason),
            ("way out", row.way_out),
        ):
            if text:
                console.print(f"  {label}: {escape(text)}", soft_wrap=True)
    if len(shown) < len(problems):
        console.print(f"… and {len(problems) - len(shown)} more; --verbose lists all")


def print_operators(rows: Sequence[OperatorSupport]) -> None:
    """Print the table of `ontrain check --operators`."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    providers = list(rows[0].providers) if rows else []
    for heading in ("operator", "since", *(name.removesuffix("ExecutionProvider") for name in providers), "gradient"):
        table.add_column(heading)
    table.add_column("why", overflow="fold")
    for row in rows:
        told = row.reason if row.gradient in ("none", "body") else ""
        table.add_row(*map(escape, (_full(row), str(row.since or ""), *_runs(row), row.gradient, told)))
    console = console_of()
    console.print(table)
    console.print(_total(rows))


def print_markdown(rows: Sequence[OperatorSupport]) -> None:
    """Print the same as a Markdown table."""
    print("\n".join(markdown_lines(rows)))


def markdown_lines(rows: Sequence[OperatorSupport]) -> list[str]:
    """Return the lines of a Markdown table of operators."""
    providers = [name.removesuffix("ExecutionProvider") for name in rows[0].providers] if rows else []
    head = ["operator", "since", *providers, "gradient", "how, or why not"]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for row in rows:
        cells = [_full(row), str(row.since or "–"), *_runs(row), row.gradient, row.reason.replace("|", "\\|")]
        lines.append("| " + " | ".join(cells) + " |")
    return [*lines, "", _total(rows)]


def _full(row: OperatorSupport) -> str:
    return row.operator if row.domain == "ai.onnx" else f"{row.domain}.{row.operator}"


def _runs(row: OperatorSupport) -> list[str]:
    return ["yes" if reason is None else "no" for reason in row.providers.values()]


def _total(rows: Sequence[OperatorSupport]) -> str:
    count = {kind: sum(row.gradient == kind for row in rows) for kind in ("rule", "body", "zero", "none")}
    return f"{len(rows)} operators; gradient by " + ", ".join(f"{kind} {n}" for kind, n in count.items()) + "."


def print_finding(finding: Finding) -> None:
    """Print what `ontrain bisect` found."""
    console_of().print(escape(f"{finding} (after {finding.tries} tries)"), soft_wrap=True)
