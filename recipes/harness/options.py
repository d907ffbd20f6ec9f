"""A dataclass as a script's flags: each annotated field is a flag of its name, with what `--help` prints of it."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Annotated, Any, get_origin, get_type_hints

import typer

from harness.files import DataError
from harness.terminal import ended


class Engine(StrEnum):
    """Who computes the updates: one graph a step, or eager PyTorch."""

    ontrain = "ontrain"
    pytorch = "pytorch"


def flag(text: str | None = None, *names: str, **limits: Any) -> Any:
    """Describe a field's flag: its help, its names where they are not `--field`, and what typer.Option takes.

    With `argument=True` the field is no flag, but told by its place.
    """
    return {"names": names, "help": text, **limits}


def command(flags: type, main: Callable[[Any], Any]) -> Callable[..., None]:
    """Return `main`, which takes an instance of `flags`, as a function of the fields that ends with an exit code."""
    hints = get_type_hints(flags, include_extras=True)
    parameters = inspect.signature(flags).parameters

    def script(**arguments: Any) -> None:
        with ended():
            main(flags(**arguments))

    script.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [
            p.replace(annotation=_typed(name, hints[name]), kind=inspect.Parameter.KEYWORD_ONLY)
            for name, p in parameters.items()
            if get_origin(hints[name]) is Annotated  # the others come about otherwise
        ]
    )
    script.__doc__ = (flags.__doc__ or "").partition("\n")[0]
    return script


def parse(flags: type) -> Any:
    """Read the command line; the script goes on with an instance of `flags`, or ends with help or what is wrong."""
    parsed: list[Any] = []
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(command(flags, parsed.append))
    try:
        app()
    except SystemExit:
        if not parsed:
            raise
    return parsed[0]


def execute(main: Callable[[Any], Any], options: Any) -> None:
    """Run a script's main function with what `parse` read."""
    try:
        with ended():
            main(options)
    except typer.Exit as end:
        sys.exit(end.exit_code)


def within(flags: Any, *ranges: tuple[str, float, float]) -> None:
    """Refuse a number that is not in its range, by its flag."""
    for name, low, high in ranges:
        value = getattr(flags, name)
        if not low <= value <= high:
            raise DataError(f"--{name} {value} is not between {low} and {high}")


def _typed(name: str, hint: Any) -> Any:
    about = dict(hint.__metadata__[0])
    names: Sequence[str] = about.pop("names") or (f"--{name}",)
    if about.pop("argument", False):
        return Annotated[hint.__origin__, typer.Argument(**about)]
    return Annotated[hint.__origin__, typer.Option(*names, **about)]
