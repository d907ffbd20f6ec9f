"""The commands and their options."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from ontrain.cli.compare import EPILOG as COMPARE_EPILOG
from ontrain.cli.compare import compare
from ontrain.cli.env import env
from ontrain.cli.output import fail, print_finding, print_json, print_markdown, print_operators, print_report
from ontrain.cli.plan import EPILOG, plan
from ontrain.cli.products import products
from ontrain.errors import OntrainError, OptionError

__all__ = ["main"]

WRONG_USAGE, UNFIT = 2, 1

_EPILOG = (
    "Exit code: 0 if the model can be trained, 1 if not, 2 if the command is wrong "
    "(no such file, function, option, provider, dimension)."
)
app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Train any PyTorch module or ONNX file as one ONNX graph.",
    pretty_exceptions_enable=False,
)


@app.callback()
def _ontrain() -> None:
    # With a callback typer keeps the command's name in front even while there are few commands.
    pass


@app.command(epilog=_EPILOG)
def check(
    model: Annotated[
        str | None,
        typer.Argument(
            metavar="FILE.onnx | package.module:function",
            help="An ONNX file, or a function without arguments that returns (module, args) or (module, args, kwargs).",
        ),
    ] = None,
    provider: Annotated[str, typer.Option(help="Execution provider to plan a step for.")] = "TorchExecutionProvider",
    loss: Annotated[
        str | None,
        typer.Option(
            help="An output to minimise, or a loss to add to the first output: SoftmaxCrossEntropy, NLL, MSE, L1, "
            "BCEWithLogits, or torch.nn's name of it. By default an output that is a scalar, or else the mean of the "
            "first."
        ),
    ] = None,
    trainable: Annotated[
        list[str] | None,
        typer.Option(metavar="PATTERN", help="Parameters to train, such as 'encoder.*.weight'; may be repeated."),
    ] = None,
    frozen: Annotated[
        list[str] | None, typer.Option(metavar="PATTERN", help="Parameters to leave as they are; may be repeated.")
    ] = None,
    dim: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=SIZE", help="Size of a dimension that varies (1 if not given); may be repeated."),
    ] = None,
    optimizer: Annotated[str, typer.Option(help="SGD, Adam, AdamW or Lamb: its state counts in the cost.")] = "AdamW",
    operators: Annotated[
        bool, typer.Option("--operators", help="No model: list the operators of the standard instead.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="With --operators: print a Markdown table.")] = False,
    verbose: Annotated[
        bool,
        typer.Option("--verbose", help="List every parameter and every blocking node; say what each phase takes."),
    ] = False,
) -> None:
    """Say whether a model can be trained, operator by operator, and what a step would cost."""
    from ontrain.session.check import check_file, check_module, check_operators, load_factory

    if verbose:
        from ontrain.capture.phases import show_phases

        show_phases()
    if operators:
        if model is not None:
            raise OptionError("--operators takes no model", way_out="leave one of the two out")
        rows = check_operators()
        (print_json if as_json else print_markdown if markdown else print_operators)(rows)
        return
    if model is None or markdown:
        raise OptionError(
            "no model is given" if model is None else "--markdown is for --operators",
            way_out="name an ONNX file, a package.module:function, or give --operators",
        )
    if _is_factory(model):
        if dim:
            raise OptionError("--dim is for ONNX files", way_out=f"let {model} return a sample of the size wanted")
        # As `python -m` does: a package in the present folder can be named.
        sys.path.insert(0, "")
        module, args, kwargs = load_factory(model)
        report = check_module(
            module, args, kwargs, provider=provider, loss=loss, trainable=trainable, frozen=frozen or (),
            optimizer=optimizer, name=model,
        )  # fmt: skip
    else:
        report = check_file(
            model, provider=provider, loss=loss, trainable=trainable, frozen=frozen or (), sizes=_sizes(dim or []),
            optimizer=optimizer,
        )  # fmt: skip
    if as_json:
        print_json(report.to_json())
    else:
        print_report(report, verbose=verbose)
    if not report.trainable:
        raise typer.Exit(UNFIT)


@app.command(
    epilog="Exit code: 0 if a pass or node was found, 1 if the check passes with all passes on, 2 if the command is "
    "wrong."
)
def bisect(
    function: Annotated[
        str,
        typer.Argument(
            metavar="package.module:function",
            help="A function without arguments that trains anew and returns True while the number is right.",
        ),
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Find the graph pass, and the node that it rewrites, with which a number goes wrong."""
    from ontrain.passes import NothingWrongError
    from ontrain.passes import bisect as search
    from ontrain.session.check import load_function

    sys.path.insert(0, "")
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


app.command(epilog=EPILOG)(plan)
app.command()(products)
app.command(epilog=COMPARE_EPILOG)(compare)
app.command()(env)


def _is_factory(model: str) -> bool:
    """A path wins over a name: C:\\models\\x.onnx and odd file names stay files."""
    place, colon, name = model.rpartition(":")
    return bool(colon) and name.isidentifier() and not Path(model).exists() and not place.endswith(".onnx")


def _sizes(given: list[str]) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for one in given:
        name, _, size = one.partition("=")
        if not name or not size.isdecimal():
            raise OptionError(f"--dim {one!r} gives no size", way_out="write --dim batch=8")
        sizes[name] = int(size)
    return sizes


def main() -> None:
    """Run the command line; wrong usage ends in exit code 2 and one readable error."""
    try:
        app()
    except OntrainError as error:
        fail(error)
        raise SystemExit(WRONG_USAGE) from None
