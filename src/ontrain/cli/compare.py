"""The command `ontrain compare`: two runs' statistics side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from ontrain.cli.output import console_of, print_json
from ontrain.errors import OptionError

if TYPE_CHECKING:
    from ontrain.training.inspection import Comparison

__all__ = ["EPILOG", "compare"]

EPILOG = "Exit code: 0 if the runs agree, 1 if a value differs, 2 if the command is wrong (no run, no step in common)."
_DIFFERS = 1
_SHOWN = 10


def compare(
    run_a: Annotated[str, typer.Argument(metavar="RUN_A", help="Folder of the run that is taken for right.")],
    run_b: Annotated[str, typer.Argument(metavar="RUN_B", help="Folder of the other run.")],
    rtol: Annotated[
        float | None,
        typer.Option(
            help="Allowed difference as a share of a tensor's largest element; by default 1e-7 in float64, 1e-2 in "
            "float16, 5e-2 in bfloat16, 1e-4 else."
        ),
    ] = None,
    atol: Annotated[float, typer.Option(help="Difference that is always allowed.")] = 0.0,
    show_all: Annotated[bool, typer.Option("--all", help=f"List all differences, not {_SHOWN}.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Print the first step and value that differ between two runs of a StatisticsSubscriber."""
    from ontrain.training.inspection import compare_runs

    for name, value in (("--rtol", rtol), ("--atol", atol)):
        if value is not None and not value >= 0:
            raise OptionError(f"{name} is {value}", way_out="give a number from 0")
    found = compare_runs(run_a, run_b, rtol=rtol, atol=atol)
    if as_json:
        print_json(found.to_json())
    else:
        _print(found, len(found.differences) if show_all else _SHOWN)
    if found.differences:
        raise typer.Exit(_DIFFERS)


def _print(found: Comparison, shown: int) -> None:
    console = console_of()
    for folder, steps in ((found.first, found.only_first), (found.second, found.only_second)):
        if steps:
            console.print(escape(f"only in {folder}: steps {', '.join(map(str, steps))}"), soft_wrap=True)
    what = f"{found.values} values in {len(found.steps)} steps"
    if not found.differences:
        console.print(f"[bold green]equal[/] within the tolerance: {what}")
        return
    first, *others = found.differences[:shown]
    console.print(f"[bold red]first difference[/]: {escape(str(first))}", soft_wrap=True)
    for one in others:
        console.print(escape(f"  {one}"), soft_wrap=True)
    hidden = len(found.differences) - shown
    console.print(f"{len(found.differences)} of {what} differ" + (f"; --all lists {hidden} more" if hidden > 0 else ""))
