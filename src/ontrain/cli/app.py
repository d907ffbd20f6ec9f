"""The commands and their options."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ontrain import __version__
from ontrain.cli.compare import MANUAL as COMPARE, compare
from ontrain.cli.env import MANUAL as ENV, env
from ontrain.cli.manual import JSON, LOSS, find_function, manual, sizes_of
from ontrain.cli.output import fail, print_finding, print_json, print_markdown, print_operators, print_report
from ontrain.cli.plan import MANUAL as PLAN, plan
from ontrain.cli.products import MANUAL as PRODUCTS, products
from ontrain.cli.profile import BENCH_MANUAL, PROFILE_MANUAL, bench, profile
from ontrain.errors import OntrainError, OptionError
from ontrain.places import model_file

__all__ = ["main"]

WRONG_USAGE, UNFIT = 2, 1

_ONTRAIN = manual(
    {
        "ontrain check model.onnx --loss SoftmaxCrossEntropy": "say whether an ONNX file can be trained, and why not",
        "ontrain plan models:classifier --batch-sizes 16,32": "print what memory a step takes, without running one",
        "ontrain env": "print what a report about a problem needs",
    },
    "0 if the command was done, 1 if its answer is no, 2 if the command is wrong. Each command says more by --help.",
)
_CHECK = manual(
    {
        "ontrain check model.onnx --dim batch=8": "check a file at a batch of 8",
        "ontrain check models:classifier --loss SoftmaxCrossEntropy --frozen 'encoder.*'": (
            "check the module that classifier() in models.py returns, its encoder not trained"
        ),
        "ontrain check --operators --markdown": "write a table of all operators: who runs them, and their gradients",
    },
    "0 if the model can be trained, 1 if not, 2 if the command is wrong (no such file, function, option, provider, "
    "dimension).",
)
_BISECT = manual(
    {
        "ontrain bisect trial:is_right": "find the pass that makes is_right() in trial.py return False",
        "ontrain bisect package.trial:is_right --json": "the same, printed for programs",
        "ONTRAIN_TUNE=0 ontrain bisect trial:is_right": "the same with eager PyTorch's matrix products",
    },
    "0 if a pass or node was found, 1 if the check passes with all passes on, 2 if the command is wrong.",
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


@app.command(epilog=_CHECK)
def check(
    model: Annotated[
        str | None,
        typer.Argument(
            metavar="FILE.onnx | package.module:function",
            help="An ONNX file, or a function without arguments that returns (module, args) or (module, args, kwargs).",
        ),
    ] = None,
    provider: Annotated[
        str, typer.Option(metavar="NAME", help="Execution provider to plan a step for.")
    ] = "TorchExecutionProvider",
    loss: Annotated[str | None, LOSS] = None,
    trainable: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PATTERN", show_default="all", help="Parameters to train, as 'encoder.*.weight'; may be repeated."
        ),
    ] = None,
    frozen: Annotated[
        list[str] | None,
        typer.Option(metavar="PATTERN", show_default="none", help="Parameters to leave as they are; may be repeated."),
    ] = None,
    dim: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=SIZE",
            show_default="1 each",
            help="Size of a file's dimension that varies; may be repeated.",
        ),
    ] = None,
    optimizer: Annotated[
        str, typer.Option(metavar="NAME", help="SGD, Adam, AdamW or Lamb: its state counts in the cost.")
    ] = "AdamW",
    operators: Annotated[
        bool,
        typer.Option("--operators", show_default="off", help="No model: list the operators of ONNX and ontrain's own."),
    ] = False,
    as_json: Annotated[bool, JSON] = False,
    markdown: Annotated[
        bool, typer.Option("--markdown", show_default="off", help="With --operators: print a Markdown table.")
    ] = False,
    verbose: Annotated[
        bool,
        typer.Option(
            "--verbose",
            show_default="off",
            help="List every parameter and every blocking node; say what each phase takes.",
        ),
    ] = False,
) -> None:
    """Say whether a model can be trained, and what a step would cost.

    Prints who runs each operator and how it is differentiated. A node that keeps the model from being trained is
    printed with its shapes, the line of your model, the reason and a way out.
    """
    if operators:
        if model is not None:
            raise OptionError("--operators takes no model", way_out="leave one of the two out")
        from ontrain.session.check import check_operators

        rows = check_operators()
        (print_json if as_json else print_markdown if markdown else print_operators)(rows)
        return
    if model is None or markdown:
        raise OptionError(
            "no model is given" if model is None else "--markdown is for --operators",
            way_out="name an ONNX file, a package.module:function, or give --operators",
        )
    sizes, is_factory = sizes_of(dim or []), _is_factory(model)
    if is_factory and dim:
        raise OptionError("--dim is for ONNX files", way_out=f"let {model} return a sample of the size wanted")
    if is_factory:
        find_function(model)
    else:
        model_file(model)

    from ontrain.session.check import check_file, check_module, load_factory

    if verbose:
        from ontrain.capture import show_phases

        show_phases()
    if is_factory:
        module, args, kwargs = load_factory(model)
        report = check_module(
            module, args, kwargs, provider=provider, loss=loss, trainable=trainable, frozen=frozen or (),
            optimizer=optimizer, name=model,
        )  # fmt: skip
    else:
        report = check_file(
            model, provider=provider, loss=loss, trainable=trainable, frozen=frozen or (), sizes=sizes,
            optimizer=optimizer,
        )  # fmt: skip
    if as_json:
        print_json(report.to_json())
    else:
        print_report(report, verbose=verbose)
    if not report.trainable:
        raise typer.Exit(UNFIT)


@app.command(epilog=_BISECT)
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
        raise typer.Exit(UNFIT) from None
    if as_json:
        print_json(finding)
    else:
        print_finding(finding)


app.command(epilog=PLAN)(plan)
app.command(epilog=PRODUCTS)(products)
app.command(epilog=COMPARE)(compare)
app.command(epilog=ENV)(env)
app.command(epilog=PROFILE_MANUAL)(profile)
app.command(epilog=BENCH_MANUAL)(bench)


def _is_factory(model: str) -> bool:
    """A path wins over a name: C:\\models\\x.onnx and odd file names stay files."""
    place, colon, name = model.rpartition(":")
    return bool(colon) and name.isidentifier() and not Path(model).exists() and not place.endswith(".onnx")


def main() -> None:
    """Run the command line; wrong usage ends in exit code 2 and one readable error."""
    try:
        app()
    except OntrainError as error:
        fail(error)
        raise SystemExit(WRONG_USAGE) from None
