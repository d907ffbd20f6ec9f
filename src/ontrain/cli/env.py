"""The command `ontrain env`: versions, machine, threads, caches, canaries and variables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from ontrain.cli.output import console_of, print_json
from ontrain.units import byte_text

if TYPE_CHECKING:
    from ontrain.training.environment import Environment

__all__ = ["env"]


def env(as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """Print what a report about a problem needs: versions, machine, threads, caches, canaries, variables."""
    from ontrain.training.environment import collect_environment

    found = collect_environment()
    if as_json:
        print_json(found.to_json())
    else:
        _print(found)


def _print(found: Environment) -> None:
    memory = found.system["memory"]
    system = {**found.system, "memory": "unknown" if memory is None else byte_text(memory)}
    devices = {
        f"CUDA device {i}": f"{one['name']}, {byte_text(one['memory'])}, compute capability {one['capability']}"
        for i, one in enumerate(found.devices)
    }
    _section("versions", {name: version or "not installed" for name, version in found.versions.items()})
    _section("machine", {**system, **(devices or {"CUDA devices": "none"}), **found.cuda})
    _section("threads", {name: "not set" if value is None else value for name, value in found.threads.items()})
    _section("providers", dict.fromkeys(found.providers, ""))
    _section("cache", {name: place or "none" for name, place in found.cache.items()})
    _print_canaries(found.canaries)
    console = console_of()
    table = _table("variable", "value", "meaning")
    for row in found.variables:
        default = f"not set ({row['default']})" if row["default"] else "not set"
        value = default if row["value"] is None else row["value"]
        meaning = row["meaning"] if row["read"] else f"not read: {row['meaning']}"
        table.add_row(*map(escape, (row["name"], value, meaning)))
    console.print(table)


def _print_canaries(canaries: list[dict[str, Any]]) -> None:
    failed = sum(not one["passed"] for one in canaries)
    table = _table("canary", "state", "what for")
    for one in canaries:
        purpose = one["purpose"] if one["passed"] else f"{one['purpose']}; refused: {one['refused']} ({one['reason']})"
        table.add_row(
            *map(escape, (one["name"], one["state"] if one["passed"] else f"FAILED: {one['state']}", purpose))
        )
    console = console_of()
    console.print(f"[bold]what torch does not promise[/]: {len(canaries) - failed} passed, {failed} failed")
    console.print(table)


def _table(*headings: str) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False)
    for heading in headings:
        table.add_column(heading, overflow="fold")
    return table


def _section(title: str, rows: dict[str, Any]) -> None:
    console = console_of()
    console.print(f"[bold]{title}[/]")
    for name, value in rows.items():
        console.print(escape(f"  {name}: {value}" if value != "" else f"  {name}"), soft_wrap=True)
