"""The command `ontrain env`: versions, machine, threads, caches, canaries and variables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from rich.markup import escape
from rich.table import Table

from ontrain.cli.manual import JSON, manual
from ontrain.cli.output import console_of, print_json
from ontrain.units import byte_text

if TYPE_CHECKING:
    from ontrain.training import Environment

__all__ = ["MANUAL", "env"]

MANUAL = manual(
    {
        "ontrain env": "print tables for people",
        "ontrain env --json": "print the same for programs",
        "ONTRAIN_CACHE_DIR=/tmp/cache ontrain env": "see what a setting changes",
    },
    "0, whatever the trials of torch say.",
)


def env(as_json: Annotated[bool, JSON] = False) -> None:
    """Print what a report about a problem needs.

    That is versions, the machine, threads, caches, the environment variables that ontrain reads, and a trial of each
    name that ontrain takes of torch without torch's promise.
    """
    from ontrain.training import collect_environment

    environment = collect_environment()
    if as_json:
        print_json(environment.to_json())
    else:
        _print(environment)


def _print(environment: Environment) -> None:
    memory = environment.system["memory"]
    system = {**environment.system, "memory": "unknown" if memory is None else byte_text(memory)}
    devices = {
        f"CUDA device {i}": f"{gpu['name']}, {byte_text(gpu['memory'])}, compute capability {gpu['capability']}"
        for i, gpu in enumerate(environment.devices)
    }
    _section("versions", {name: version or "not installed" for name, version in environment.versions.items()})
    _section("machine", {**system, **(devices or {"CUDA devices": "none"}), **environment.cuda})
    _section("threads", {name: "not set" if value is None else value for name, value in environment.threads.items()})
    _section("providers", dict.fromkeys(environment.providers, ""))
    _section("cache", {name: place or "none" for name, place in environment.cache.items()})
    _print_canaries(environment.canaries)
    console = console_of()
    table = _table("variable", "value", "meaning")
    for row in environment.variables:
        default = f"not set ({row['default']})" if row["default"] else "not set"
        value = default if row["value"] is None else row["value"]
        meaning = row["meaning"] if row["read"] else f"not read: {row['meaning']}"
        table.add_row(*map(escape, (row["name"], value, meaning)))
    console.print(table)


def _print_canaries(canaries: list[dict[str, Any]]) -> None:
    failed = sum(not canary["passed"] for canary in canaries)
    table = _table("canary", "state", "what for")
    for canary in canaries:
        purpose = (
            canary["purpose"]
            if canary["passed"]
            else f"{canary['purpose']}; refused: {canary['refused']} ({canary['reason']})"
        )
        table.add_row(
            *map(
                escape, (canary["name"], canary["state"] if canary["passed"] else f"FAILED: {canary['state']}", purpose)
            )
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
