"""The command `ontrain plan`: batch size against memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.table import Table

from ontrain.cli.manual import JSON, LOSS, find_function, manual
from ontrain.cli.output import console_of, print_json
from ontrain.errors import OptionError
from ontrain.units import byte_text

if TYPE_CHECKING:
    from ontrain.session.check import MemoryPlan, MemoryRow

__all__ = ["MANUAL", "plan"]

MANUAL = manual(
    {
        "ontrain plan models:classifier --loss SoftmaxCrossEntropy": "plan the module of classifier() in models.py",
        "ontrain plan models:classifier --batch-sizes 64 --memory-budget 2GiB --memory-budget 0.5": (
            "what a batch of 64 recomputes to fit into 2 GiB, and into half of its working memory"
        ),
        "ontrain plan models:classifier --batch-sizes 64 --clusters": "list what can be recomputed, the cheapest first",
    },
    "0, or 2 if the command is wrong (no such function, option, provider, budget) or the model cannot be trained.",
)
_COLUMNS = ("parameters", "gradients", "moments", "activations", "peak")


def plan(
    model: Annotated[
        str,
        typer.Argument(
            metavar="package.module:function",
            help="A function without arguments that returns (module, args) or (module, args, kwargs).",
        ),
    ],
    batch_sizes: Annotated[str, typer.Option(metavar="1,2,4", help="Batch sizes to plan.")] = "1,2,4,8,16,32",
    memory_budget: Annotated[
        list[str] | None,
        typer.Option(
            metavar="BUDGET",
            help="Working memory to fit into by recomputing activations: bytes, '2GiB', or a fraction such as 0.5; may "
            "be repeated.",
            show_default="none",
        ),
    ] = None,
    provider: Annotated[
        str, typer.Option(metavar="NAME", help="Execution provider to plan for.")
    ] = "TorchExecutionProvider",
    loss: Annotated[str | None, LOSS] = None,
    optimizer: Annotated[str, typer.Option(metavar="NAME", help="SGD, Adam, AdamW or Lamb.")] = "AdamW",
    clusters: Annotated[
        bool,
        typer.Option("--clusters", show_default="off", help="List what can be recomputed at the largest batch size."),
    ] = False,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Print what memory a training step takes at each batch size.

    No step is run. With a memory budget, the table also says what recomputation saves and what it costs.
    """
    sizes = _numbers(batch_sizes)
    find_function(model)

    from ontrain.session.check import load_factory, plan_memory

    module, args, kwargs = load_factory(model)
    plan = plan_memory(
        module, args, kwargs, batch_sizes=sizes, budgets=memory_budget or (), provider=provider,
        loss=loss, optimizer=optimizer, name=model,
    )  # fmt: skip
    if as_json:
        print_json(plan.to_json())
    else:
        _print(plan, with_clusters=clusters)


def _numbers(text: str) -> list[int]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise OptionError(f"--batch-sizes {text!r}", way_out="write whole numbers with commas: 1,2,4,8")
    return [int(part) for part in parts]


def _print(plan: MemoryPlan, *, with_clusters: bool) -> None:
    console = console_of()
    console.print(f"[bold]{escape(plan.subject)}[/]: one step of {plan.optimizer}, loss {escape(plan.loss)}")
    budgeted = any(row.budget is not None for row in plan.rows)
    table = Table(box=None, header_style="bold", pad_edge=False)
    for heading in ("batch", *(("budget",) if budgeted else ()), *_COLUMNS, *(("recomputed",) if budgeted else ())):
        table.add_column(heading, justify="right")
    problems = []
    for row in plan.rows:
        table.add_row(str(row.batch_size), *([row.budget or "–"] if budgeted else []), *_cells(row, budgeted))
        if row.problem is not None:
            problems.append(f"batch {row.batch_size}: {row.problem}")
    console.print(table)
    for problem in problems:
        console.print(f"[yellow]{escape(problem)}[/]", soft_wrap=True)
    console.print(f"this machine has {byte_text(plan.available)}; planned for {plan.provider}")
    if with_clusters:
        _print_clusters(plan)


def _cells(row: MemoryRow, budgeted: bool) -> list[str]:
    if row.problem is not None:
        return ["–"] * (len(_COLUMNS) + 1)
    cells = [byte_text(getattr(row, column)) for column in _COLUMNS]
    return [*cells, f"{row.recomputed_flop:.1%} of FLOP"] if budgeted else cells


def _print_clusters(plan: MemoryPlan) -> None:
    table = Table(box=None, header_style="bold", pad_edge=False)
    for heading in ("places", "bytes each", "FLOP a byte"):
        table.add_column(heading, justify="right")
    table.add_column("cluster", overflow="fold")
    for row in plan.clusters:
        table.add_row(str(row.places), byte_text(row.bytes), f"{row.flop_per_byte:.0f}", escape(row.name))
    console = console_of()
    console.print(f"[bold]what backward may compute again[/] at batch {max(r.batch_size for r in plan.rows)}")
    console.print(table)
