"""The command line: its commands, one module each."""

from __future__ import annotations

from typing import Annotated

import typer

from ontrain import __version__
from ontrain.cli.bisect import MANUAL as BISECT, bisect
from ontrain.cli.check import MANUAL as CHECK, check
from ontrain.cli.compare import MANUAL as COMPARE, compare
from ontrain.cli.env import MANUAL as ENV, env
from ontrain.cli.manual import manual
from ontrain.cli.output import fail
from ontrain.cli.plan import MANUAL as PLAN, plan
from ontrain.cli.products import MANUAL as PRODUCTS, products
from ontrain.cli.profile import BENCH_MANUAL, PROFILE_MANUAL, bench, profile
from ontrain.errors import OntrainError

__all__ = ["main"]

_WRONG_USAGE = 2

_ONTRAIN = manual(
    {
        "ontrain check model.onnx --loss SoftmaxCrossEntropy": "say whether an ONNX file can be trained, and why not",
        "ontrain plan models:classifier --batch-sizes 16,32": "print what memory a step takes, without running one",
        "ontrain env": "print what a report about a problem needs",
    },
    "0 if the command was done, 1 if its answer is no, 2 if the command is wrong. Each command says more by --help.",
)
app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"ontrain {__version__}")
        raise typer.Exit


@app.callback(epilog=_ONTRAIN)
def _ontrain(
    _version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, show_default="off", help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """Look at models, runs and this machine, before and after training.

    ontrain trains any PyTorch module or ONNX file as one ONNX graph. Training itself is called from Python; these
    commands say beforehand whether a model can be trained and what a step costs, and afterwards what went wrong.
    """


app.command(epilog=CHECK)(check)
app.command(epilog=BISECT)(bisect)
app.command(epilog=PLAN)(plan)
app.command(epilog=PRODUCTS)(products)
app.command(epilog=COMPARE)(compare)
app.command(epilog=ENV)(env)
app.command(epilog=PROFILE_MANUAL)(profile)
app.command(epilog=BENCH_MANUAL)(bench)


def main() -> None:
    """Run the command line; wrong usage ends in exit code 2 and one readable error."""
    try:
        app()
    except OntrainError as error:
        fail(error)
        raise SystemExit(_WRONG_USAGE) from None
