"""The command `ontrain bisect`: the graph pass with which a number goes wrong."""

from __future__ import annotations

from typing import Annotated

import typer

from ontrain.cli.manual import JSON, find_function, manual
from ontrain.cli.output import fail, print_finding, print_json

__all__ = ["MANUAL", "bisect"]

MANUAL = manual(
    {
        "ontrain bisect trial:is_right": "find the pass that makes is_right() in trial.py return False",
        "ontrain bisect package.trial:is_right --json": "the same, printed for programs",
        "ONTRAIN_TUNE=0 ontrain bisect trial:is_right": "the same with eager PyTorch's matrix products",
    },
    "0 if a pass or node was found, 1 if the check passes with all passes on, 2 if the command is wrong.",
)
_FOUND_NOTHING = 1


def bisect(
    function: Annotated[
        str,
        typer.Argument(
            metavar="package.module:function",
            help="A function without arguments that trains anew and returns True while the number is right.",
        ),
    ],
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Find the graph pass with which a number goes wrong.

    Calls your function with ever fewer passes, then with ever fewer rewrites of one pass, and prints the pass, the
    node that it rewrites and the line of your model.
    """
    find_function(function)

    from ontrain.passes import NothingWrongError, bisect as search
    from ontrain.session.check import load_function

    check_number = load_function(function)
    try:
        finding = search(check_number)
    except NothingWrongError as error:
        fail(error)
        raise typer.Exit(_FOUND_NOTHING) from None
    if as_json:
        print_json(finding)
    else:
        print_finding(finding)
