"""What the commands share: the text below their options, options of the same meaning, and the search for a function."""

from __future__ import annotations

import sys
from collections.abc import Mapping

import typer

from ontrain.errors import OptionError
from ontrain.places import check_module_exists, function_name

__all__ = ["JSON", "LOSS", "find_function", "manual", "sizes_of"]

JSON = typer.Option("--json", show_default="off", help="Print JSON.")
LOSS = typer.Option(
    metavar="NAME",
    help="An output to minimise, or a loss to add to the first output: SoftmaxCrossEntropy, NLL, MSE, L1, "
    "BCEWithLogits, or torch.nn's name of it.",
    show_default="an output that is a scalar, or else the mean of the first",
)

_AS_WRITTEN = "\b"
"""As the first line of a paragraph, it keeps the paragraph's lines as they are."""


def manual(examples: Mapping[str, str], exit_code: str) -> str:
    """Return the text below a command's options.

    Args:
        examples: commands, each with what it does.
        exit_code: what the exit code says.
    """
    lines = [_AS_WRITTEN, "Examples:"]
    for command, effect in examples.items():
        lines += [f"  {command}", f"      {effect}"]
    return "\n".join(lines) + f"\n\nExit code: {exit_code}"


def find_function(target: str) -> None:
    """Look for the module of "package.module:function", in the present folder first, without importing it.

    Raises:
        OptionError: the text has another form, or there is no such module.
    """
    module, _ = function_name(target)
    sys.path.insert(0, "")  # as `python -m` does
    check_module_exists(module)


def sizes_of(dims: list[str]) -> dict[str, int]:
    """Return sizes by the names of dimensions, from texts such as "batch=8".

    Raises:
        OptionError: a text is none.
    """
    sizes: dict[str, int] = {}
    for dim in dims:
        name, _, size = dim.partition("=")
        if not name or not size.isdecimal():
            raise OptionError(f"--dim {dim!r} gives no size", way_out="write --dim batch=8")
        sizes[name] = int(size)
    return sizes
