"""A dataclass as a script's flags: each annotated field is a flag of its name, with what `--help` prints of it."""

from __future__ import annotations

import inspect
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import fields
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

    With `argument=True` the field is no flag, but told by its place. With `missing` it is a path, or a list of paths,
    that has to exist; `missing` is what an error says behind a path that does not. `min` and `max` are the bounds of a
    number, which `within` looks at, too.
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
            p.replace(annotation=_typed(name, hints[name], p.default), kind=inspect.Parameter.KEYWORD_ONLY)
            for name, p in parameters.items()
            if get_origin(hints[name]) is Annotated  # the others come about otherwise
        ]
    )
    script.__doc__ = (flags.__doc__ or "").partition("\n")[0]
    return script


def parse(flags: type) -> Any:
    """Read the command line; the script goes on with an instance of `flags`, or ends with help or what is wrong.

    `--help` prints the script's docstring, and below it each flag with its default.
    """
    parsed: list[Any] = []

    def accept(options: Any) -> None:
        _find_paths(options)
        parsed.append(options)

    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
    manual = _as_written(sys.modules["__main__"].__doc__ or "")
    app.command(help=manual, context_settings={"max_content_width": 120})(command(flags, accept))
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
    """Refuse, by its flag, a number that is not between its `min` and `max`, or not in one of the ranges given.

    A command line has been looked at before; this is for instances that a program makes.
    """
    bounds = {name: (about.get("min", -math.inf), about.get("max", math.inf)) for name, about in _described(flags)}
    for name, low, high in [*((name, *bound) for name, bound in bounds.items()), *ranges]:
        value = getattr(flags, name)
        if isinstance(value, int | float) and not low <= value <= high:
            raise DataError(f"--{name} {value} is not between {low} and {high}")


def part_of(kind: type, flags: Any, **others: Any) -> Any:
    """Return those of the flags that make an instance of a dataclass which theirs extends; `others` take precedence."""
    return kind(**{field.name: getattr(flags, field.name) for field in fields(kind)} | others)


def _described(options: Any) -> list[tuple[str, dict[str, Any]]]:
    """The flags' names, and what `flag` says of each."""
    hints = get_type_hints(type(options), include_extras=True).items()
    return [(name, hint.__metadata__[0]) for name, hint in hints if get_origin(hint) is Annotated]


def _find_paths(options: Any) -> None:
    """Refuse paths that are not there, before a script imports what takes seconds."""
    for name, about in _described(options):
        value = getattr(options, name)
        called = "" if about.get("argument") else f"{(*about.get('names', ()), f'--{name}')[0]} "
        for path in value if isinstance(value, list) else [value]:
            if "missing" in about and path and not path.exists():
                raise DataError(f"{called}{path}: {about['missing']}")


def _as_written(manual: str) -> str:
    """Have typer keep the lines of the paragraphs that hold commands and tables; it wraps the others."""
    paragraphs = manual.split("\n\n")
    return "\n\n".join(f"\b\n{text}" if text.startswith((" ", "|")) else text for text in paragraphs)


def _typed(name: str, hint: Any, default: Any) -> Any:
    about = dict(hint.__metadata__[0])
    names: Sequence[str] = about.pop("names") or (f"--{name}",)
    about.pop("missing", None)
    if about.pop("argument", False):
        return Annotated[hint.__origin__, typer.Argument(**about)]
    if default is None or default is False:
        about.setdefault("show_default", "none" if default is None else "off")
    return Annotated[hint.__origin__, typer.Option(*names, **about)]
