"""The command `ontrain check`: whether a model can be trained, and what a step would cost."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from ontrain.cli.manual import JSON, LOSS, find_function, manual, sizes_of
from ontrain.cli.output import print_json, print_markdown, print_operators, print_report
from ontrain.errors import OptionError
from ontrain.places import model_file

__all__ = ["MANUAL", "check"]

MANUAL = manual(
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
_UNFIT = 1


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
        _list_operators(model, as_json=as_json, markdown=markdown)
        return
    if model is None or markdown:
        raise OptionError(
            "no model is given" if model is None else "--markdown is for --operators",
            way_out="name an ONNX file, a package.module:function, or give --operators",
        )
    sizes, is_factory = sizes_of(dim or []), _is_factory(model)
    if is_factory and dim:
        raise OptionError("--dim is for ONNX files", way_out=f"let {model} return a sample of the size wanted")
    (find_function if is_factory else model_file)(model)

    from ontrain.session.check import check_file, check_module, load_factory

    if verbose:
        from ontrain.capture import show_phases

        show_phases()
    asked: dict[str, Any] = {
        "provider": provider, "loss": loss, "trainable": trainable, "frozen": frozen or (), "optimizer": optimizer,
    }  # fmt: skip
    if is_factory:
        report = check_module(*load_factory(model), name=model, **asked)
    else:
        report = check_file(model, sizes=sizes, **asked)
    if as_json:
        print_json(report.to_json())
    else:
        print_report(report, verbose=verbose)
    if not report.trainable:
        raise typer.Exit(_UNFIT)


def _list_operators(model: str | None, *, as_json: bool, markdown: bool) -> None:
    if model is not None:
        raise OptionError("--operators takes no model", way_out="leave one of the two out")

    from ontrain.session.check import check_operators

    (print_json if as_json else print_markdown if markdown else print_operators)(check_operators())


def _is_factory(model: str) -> bool:
    """A path wins over a name: C:\\models\\x.onnx and odd file names stay files."""
    place, colon, name = model.rpartition(":")
    return bool(colon) and name.isidentifier() and not Path(model).exists() and not place.endswith(".onnx")
