"""The command `ontrain products`: what tuning has measured."""

from __future__ import annotations

import math
from typing import Annotated

from rich.markup import escape
from rich.table import Table

from ontrain.cli.manual import JSON, manual
from ontrain.cli.output import console_of, print_json

__all__ = ["MANUAL", "products"]

MANUAL = manual(
    {
        "ontrain products": "print a table for each processor, number of threads and torch",
        "ontrain products --json": "print the file's content and place",
        "ONTRAIN_CACHE_DIR=/tmp/cache ontrain products": "look into another cache",
    },
    "0.",
)


def products(as_json: Annotated[bool, JSON] = False) -> None:
    """Print how fast matrix products were on this machine.

    Large products on a CPU are measured in several formulations when a model is first trained. The table has the rate
    of each formulation, and which of them is taken.
    """
    from ontrain.providers.torch import timings
    from ontrain.providers.torch.timings import ATEN, choice, read_timings, sizes_of, tuning_file

    file = tuning_file()
    machines = read_timings(file)
    if as_json:
        print_json({"file": str(file), "machines": timings.as_json(machines)})
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
        names = list(dict.fromkeys(name for entry in known.values() for name in entry.seconds))
        for name in (*names, "gain", "taken"):
            table.add_column(name, justify="right" if name != "taken" else "left")
        for product, entry in sorted(known.items()):
            work, times = 2 * math.prod(sizes_of(product)), entry.seconds
            rates = [f"{work / times[name] / 1e9:.0f} GFLOP/s" if name in times else "" for name in names]
            gain = f"{times[ATEN] / min(times.values()) - 1:.0%}" if times else "not measured yet"
            table.add_row(product, *rates, gain, entry.taken or choice(product, times))
        console.print(table)
