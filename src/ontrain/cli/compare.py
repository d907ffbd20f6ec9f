"""The command `ontrain compare`: two runs' statistics side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from ontrain.cli.manual import JSON, manual
from ontrain.cli.output import console_of, print_json
from ontrain.errors import OptionError
from ontrain.places import steps_of_run

if TYPE_CHECKING:
    from ontrain.training.inspection import Comparison

__all__ = ["MANUAL", "compare"]

MANUAL = manual(
    {
        "ontrain compare runs/eager runs/ours": "print the first value that differs, and nine more",
        "ontrain compare runs/eager runs/ours --rtol 1e-3 --all": "allow a thousandth, and list all that differ",
        "ontrain compare runs/eager runs/ours --json": "the same, printed for programs",
    },
    "0 if the runs agree, 1 if a value differs, 2 if the command is wrong (no run, no step in common).",
)
_DIFFERS = 1
_SHOWN = 10


def compare(
    run_a: Annotated[str, typer.Argument(metavar="RUN_A", help="Folder of the run that is taken for right.")],
    run_b: Annotated[str, typer.Argument(metavar="RUN_B", help="Folder of the other run.")],
    rtol: Annotated[
        float | None,
        typer.Option(
            metavar="SHARE",
            help="Allowed difference as a share of a tensor's largest element.",
            show_default="1e-7 in float64, 1e-2 in float16, 5e-2 in bfloat16, 1e-4 else",
        ),
    ] = None,
    atol: Annotated[float, typer.Option(metavar="NUMBER", help="Difference that is always allowed.")] = 0.0,
    show_all: Annotated[
        bool, typer.Option("--all", show_default="off", help=f"List all differences, not {_SHOWN}.")
    ] = False,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Print the first value in which two runs differ.

    A run is the folder that a StatisticsSubscriber wrote. Values are compared in the order of execution of the first
    run.
    """
    for name, value in (("--rtol", rtol), ("--atol", atol)):
        if value is not None and not value >= 0:
            raise OptionError(f"{name} is {value}", way_out="give a number from 0")
    for run in (run_a, run_b):
        steps_of_run(run)

    from ontrain.training.inspection import compare_runs

    comparison = compare_runs(run_a, run_b, rtol=rtol, atol=atol)
    if as_json:
        print_json(comparison.to_json())
    else:
        _print(comparison, len(comparison.differences) if show_all else _SHOWN)
    if comparison.differences:
        raise typer.Exit(_DIFFERS)


def _print(comparison: Comparison, shown: int) -> None:
    console = console_of()
    for folder, steps in ((comparison.first, comparison.only_first), (comparison.second, comparison.only_second)):
        if steps:
            console.print(escape(f"only in {folder}: steps {', '.join(map(str, steps))}"), soft_wrap=True)
    what = f"{comparison.values} values in {len(comparison.steps)} steps"
    if not comparison.differences:
        console.print(f"[bold green]equal[/] within the tolerance: {what}")
        return
    first, *others = comparison.differences[:shown]
    console.print(f"[bold red]first difference[/]: {escape(str(first))}", soft_wrap=True)
    for other in others:
        console.print(escape(f"  {other}"), soft_wrap=True)
    hidden = len(comparison.differences) - shown
    console.print(
        f"{len(comparison.differences)} of {what} differ" + (f"; --all lists {hidden} more" if hidden > 0 else "")
    )
