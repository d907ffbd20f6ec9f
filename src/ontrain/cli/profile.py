"""The commands `ontrain profile` and `ontrain bench`: where the time of a model goes, and who runs it faster."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.table import Table

from ontrain.cli.manual import JSON, manual, sizes_of
from ontrain.cli.output import console_of, print_json
from ontrain.errors import OptionError
from ontrain.places import model_file
from ontrain.units import byte_text

if TYPE_CHECKING:
    from ontrain.inference.profile import BenchRow, Profile

__all__ = ["BENCH_MANUAL", "PROFILE_MANUAL", "bench", "profile"]

PROFILE_MANUAL = manual(
    {
        "ontrain profile model.onnx": "print the dearest nodes on the default provider",
        "ontrain profile model.onnx --provider TorchExecutionProvider --dim batch=8 --page profile.html": (
            "the same on PyTorch at a batch of 8, with a page of pictures"
        ),
        "ontrain profile model.onnx --feeds feeds.npz --rows 5": "with arrays of a file as inputs; five nodes",
    },
    "0, or 2 if the command is wrong (no such file, dimension, provider) or the model cannot run.",
)
BENCH_MANUAL = manual(
    {
        "ontrain bench model.onnx": "time a model on onnxruntime and on PyTorch",
        "ontrain bench model.onnx --providers CPUExecutionProvider,TorchExecutionProvider --threads 1": "one thread",
        "ontrain bench model.onnx --dim batch=8 --runs 200 --json": "a batch of 8, 200 runs each, printed for programs",
    },
    "0, or 2 if the command is wrong (no such file, dimension, provider) or a provider cannot run the model.",
)
_MODEL = typer.Argument(metavar="FILE.onnx", help="An ONNX file.")
_FEEDS = typer.Option(metavar="FILE.npz", show_default="random numbers", help="Arrays by input name.")
_DIM = typer.Option(
    metavar="NAME=SIZE", show_default="1 each", help="Size of a dimension of random inputs; may be repeated."
)
_THREADS = typer.Option(metavar="N", help="Threads to compute with; 0 lets the providers choose.")


def profile(
    model: Annotated[str, _MODEL],
    provider: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", show_default="onnxruntime's", help="Execution provider; may be repeated."),
    ] = None,
    feeds: Annotated[str | None, _FEEDS] = None,
    dim: Annotated[list[str] | None, _DIM] = None,
    runs: Annotated[int, typer.Option(metavar="N", help="Runs to time.")] = 10,
    rows: Annotated[int, typer.Option(metavar="N", help="Nodes to print.")] = 20,
    threads: Annotated[int, _THREADS] = 0,
    page: Annotated[
        str | None,
        typer.Option(
            metavar="FILE.html", show_default="none", help="Write a page with pictures, which needs no network."
        ),
    ] = None,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Run a model with a clock around each node, and print what each costs."""
    sizes = sizes_of(dim or [])
    model_file(model)
    if page is not None and not Path(page).absolute().parent.is_dir():
        raise OptionError(f"--page {page!r}", reason="there is no such folder")

    from ontrain.inference import read_feeds
    from ontrain.inference.profile import profile as profiled
    from ontrain.inference.profile_page import profile_page

    result = profiled(
        model, None if feeds is None else read_feeds(feeds), providers=provider or None, runs=runs, sizes=sizes,
        threads=threads,
    )  # fmt: skip
    if page is not None:
        Path(page).write_text(profile_page(result), encoding="utf-8")
    if as_json:
        print_json(result.to_json())
    else:
        _print_profile(result, rows)


def bench(
    model: Annotated[str, _MODEL],
    providers: Annotated[
        str, typer.Option(metavar="NAME,NAME", help="Execution providers; the first is what others are compared with.")
    ] = "CPUExecutionProvider,TorchExecutionProvider",
    feeds: Annotated[str | None, _FEEDS] = None,
    dim: Annotated[list[str] | None, _DIM] = None,
    runs: Annotated[int, typer.Option(metavar="N", help="Runs on each provider.")] = 50,
    threads: Annotated[int, _THREADS] = 0,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Time a model on several providers, in turns."""
    sizes = sizes_of(dim or [])
    model_file(model)
    names = [name.strip() for name in providers.split(",") if name.strip()]

    from ontrain.inference import read_feeds
    from ontrain.inference.profile import bench as timed

    rows = timed(
        model, None if feeds is None else read_feeds(feeds), providers=names, runs=runs, sizes=sizes, threads=threads
    )
    if as_json:
        print_json(rows)
    else:
        _print_bench(rows)


def _print_profile(result: Profile, rows: int) -> None:
    console = console_of()
    inputs = ", ".join(f"{name}: {kind}" for name, kind in result.inputs.items())
    console.print(f"[bold]{escape(result.subject)}[/]: {escape(inputs)}", soft_wrap=True)
    console.print(
        f"{', '.join(result.providers)}: {_time(result.microseconds)} a run with a clock around each node, median of "
        f"{result.runs}",
        soft_wrap=True,
    )
    table = _table("node", "operator", "provider", numbers=("calls", "time", "share", "memory"))
    for node in result.nodes[:rows]:
        table.add_row(
            escape(node.name), escape(node.operator), node.provider.removesuffix("ExecutionProvider"), str(node.calls),
            _time(node.microseconds), f"{node.share:.1%}", byte_text(node.memory) if node.memory else "–",
        )  # fmt: skip
    console.print(table)
    left = result.nodes[rows:]
    if left:
        console.print(f"{len(left)} more, {sum(node.share for node in left):.1%} of the time")


def _print_bench(rows: list[BenchRow]) -> None:
    table = _table("provider", numbers=("median", "fastest", "ratio"))
    for row in rows:
        table.add_row(row.provider, _time(row.microseconds), _time(row.fastest), f"{row.ratio:.2f}")
    console_of().print(table)


def _table(*columns: str, numbers: tuple[str, ...]) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False)
    for heading in columns:
        table.add_column(heading, overflow="fold")
    for heading in numbers:
        table.add_column(heading, justify="right")
    return table


def _time(microseconds: float) -> str:
    if microseconds >= 1e6:
        return f"{microseconds / 1e6:.2f} s"
    return f"{microseconds / 1e3:.2f} ms" if microseconds >= 1e3 else f"{microseconds:.1f} µs"
