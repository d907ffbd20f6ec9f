"""The command `ontrain products`: what tuning has measured."""

from __future__ import annotations

import math
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from ontrain.cli.output import console_of, print_json

__all__ = ["products"]


def products(as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """Print the matrix products that were measured, and which formulation of each is taken."""
    from ontrain.providers.torch.tuning import choice, read_timings, sizes_of, tuning_file

    file = tuning_file()
    machines = read_timings(file)
    if as_json:
        print_json({"file": str(file), "machines": machines})
        return
    console = console_of()
    console.print(
        escape(str(file))
        + (
            ""
            if machines
            else " holds nothing yet: products are measured when a model is first trained, unless ONTRAIN_TUNE=0"
        )
    )
    for machine, known in machines.items():
        table = Table("rows x inner x columns", title=escape(machine), title_justify="left")
        names = list(dict.fromkeys(name for times in known.values() for name in times))
        for name in (*names, "gain", "taken"):
            table.add_column(name, justify="right" if name != "taken" else "left")
        for product, times in sorted(known.items()):
            work = 2 * math.prod(sizes_of(product))
            rates = [f"{work / times[name] / 1e9:.0f} GFLOP/s" if name in times else "" for name in names]
            table.add_row(product, *rates, f"{times['aten'] / min(times.values()) - 1:.0%}", choice(product, times))
        console.print(table)
