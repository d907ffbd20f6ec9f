"""Models of PyTorch's compiler benchmarks under torch.compile(backend="ontrain"), each beside eager PyTorch.

    python -m tests.training.compiled.suite [NAME ...] [--suite SUITE] [--missing] [--write]

compares all models, or those named, and prints a line for each; with --missing only those that suite.json lacks. With
--write the rows of the compared models are renewed in suite.json and in docs/torch-compile.md.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Mapping
from dataclasses import asdict
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any

from ontrain.errors import nearest
from tests.page import read_rows, renew, write_rows
from tests.training.compiled.suite import MODELS
from tests.training.compiled.suite.entry import BATCH_SIZES
from tests.training.compiled.suite.judge import DRAWS, IN_DOUBLE, MULTIPLE, OF_LARGEST, PYTORCHS, ROUNDING, judge

TABLE = Path(__file__).with_name("suite.json")
PAGE = Path(__file__).parents[4] / "docs" / "torch-compile.md"
HEADING = "## Models of PyTorch's own benchmarks"
TEXT = """\
{heading}

Written by `python -m tests.training.compiled.suite --write`; do not edit. Last on {day}, with {versions}.

PyTorch compares its compilers on the CPU over {huggingface} names of transformers and {timm} of timm
(`benchmarks/dynamo` in its repository). The table has the same classes, small, with random weights and without dropout.
Each is trained for three steps with batches of {sizes} under `torch.compile(backend="ontrain")`, with `dynamic` at its
default. Loss, gradients and buffers in single precision are compared with eager PyTorch's in double precision. A model
is right where no tensor is off by more than {multiple:g} times eager's own error in single precision and {rounding:g}
of the tensor's norm; {of_largest:g} of the largest norm of its kind is allowed besides.

That is mostly stricter than PyTorch's own criterion, `torch._dynamo.utils.same` with a tolerance of {pytorchs:g}, the
least that its benchmarks take for training. *PyTorch's* says whether that criterion accepts the same tensors.

A gradient jumps where a rectifier's input is zero but for rounding, or where two values under a maximum are equal, and
then single precision decides by chance. So a model that is off is compared in double precision, too. One that is right
there, to {in_double:g} of each norm, is judged anew in single precision with other random weights; *draws* says how
often it was judged, {draws} times at most. One that is wrong there, or never right in single precision, is wrong.
Of the wrong ones, those that were judged {draws} times are right in double precision.

*Graphs* counts the pieces for all three sizes together. *By PyTorch* counts those that ontrain refused, so that PyTorch
ran them; a model is refused where it ran all of them. *Error* is the largest in units of what is allowed.

{right}.
PyTorch's criterion accepts {accepted} of the {judged} models that were judged by it, too.
PyTorch ran no piece of {whole} of them.

| model | suite | result | graphs | breaks | by PyTorch | error | draws | PyTorch's | remark |
|---|---|---|---|---|---|---|---|---|---|
"""

_ACCEPTED = {True: "yes", False: "no", None: ""}
Row = dict[str, Any]


def section(rows: Mapping[str, Row]) -> str:
    """Return the part of the page that the rows make."""
    suites = [model.suite for model in MODELS.values()]
    right = [
        f"{sum(row['result'] == 'right' for name, row in rows.items() if MODELS[name].suite == suite)} of the "
        f"{sum(MODELS[name].suite == suite for name in rows)} models of {package} that were tried are right"
        for suite, package in (("huggingface", "transformers"), ("timm", "timm"))
    ]
    whole = sum(row["result"] == "right" and not row["eager_pieces"] for row in rows.values())
    verdicts = [row.get("accepted") for row in rows.values()]
    versions = ", ".join(f"{package} {_version(package)}" for package in ("torch", "transformers", "timm"))
    head = TEXT.format(
        heading=HEADING, day=date.today(), versions=versions, whole=whole, right=" and ".join(right),
        huggingface=suites.count("huggingface"), timm=suites.count("timm"), multiple=MULTIPLE, rounding=ROUNDING,
        of_largest=OF_LARGEST, pytorchs=PYTORCHS, in_double=IN_DOUBLE, draws=DRAWS, accepted=verdicts.count(True),
        judged=len(verdicts) - verdicts.count(None),
        sizes=", ".join(map(str, BATCH_SIZES[:-1])) + f" and {BATCH_SIZES[-1]}",
    )  # fmt: skip
    return head + "".join(_line(name, row) for name, row in rows.items())


def _version(package: str) -> str:
    return version(package).split("+")[0]


def _line(name: str, row: Row) -> str:
    cells = [name, MODELS[name].suite, row["result"], row["graphs"], row["breaks"], row["eager_pieces"] or ""]
    cells += [
        f"{row['worst']:.2g}",
        row.get("draws", 1),
        _ACCEPTED[row.get("accepted")],
        row["remark"].replace("|", r"\|"),
    ]
    return ("| " + " | ".join(map(str, cells))).rstrip() + " |\n"


def main() -> None:
    """Compare models and print what came of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="models, as the table names them; all by default")
    parser.add_argument("--suite", choices=("huggingface", "timm"), help="only models of this suite")
    parser.add_argument("--backend", default="ontrain", help="another of torch.compile's, to judge the criterion by")
    parser.add_argument("--missing", action="store_true", help=f"only models that {TABLE.name} lacks")
    parser.add_argument("--write", action="store_true", help=f"renew {TABLE.name} and docs/torch-compile.md")
    options = parser.parse_args()
    if unknown := [name for name in options.names if name not in MODELS]:
        parser.error(f"there is no model {unknown[0]!r}; nearest: {nearest(unknown[0], MODELS)}")
    warnings.simplefilter("ignore")
    for name in options.names or MODELS:
        model = MODELS[name]
        if options.suite not in (None, model.suite) or (options.missing and name in read_rows(TABLE)):
            continue
        verdict = judge(model, options.backend)
        row = {key: value for key, value in asdict(verdict).items() if key != "seconds"}
        print(_line(name, row).rstrip("\n"), f"{verdict.seconds:.0f} s", flush=True)
        if options.write:
            known = {**read_rows(TABLE), name: row}
            rows = {each: known[each] for each in MODELS if each in known}
            write_rows(TABLE, rows)
            renew(PAGE, HEADING, section(rows))


if __name__ == "__main__":
    main()
