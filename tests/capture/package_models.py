"""Models of other packages through ORTModule: each has eager PyTorch's loss and gradients, or is refused by name.

    python -m tests.capture.package_models [NAME ...] [--write]

compares all models, or those named, at two batch shapes in double precision and prints a line for each. A model whose
package is not installed is skipped. With --write the rows of the compared models are renewed in package_models.json
and in docs/coverage.md.
"""

from __future__ import annotations

import argparse
import copy
import re
import warnings
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ontrain.errors import OntrainError
from ontrain.training.ortmodule import ORTModule
from tests.capture.packages import MODELS, PackageModel
from tests.capture.packages.vision_operators import define_vision_operators
from tests.page import read_rows, renew, write_rows

TABLE = Path(__file__).with_suffix(".json")
PAGE = Path(__file__).parents[2] / "docs" / "coverage.md"
TOLERANCE = 1e-5
HEADING = "## Models of packages"
TEXT = """\
{heading}

Written by `python -m tests.capture.package_models --write`; do not edit. Versions: {versions}.

Each model is the package's own class, small and random, wrapped in `ORTModule`. The loss and the gradient of every
parameter are compared with eager PyTorch's in double precision, with batches of two shapes. *Largest error* is that of
the loss or of the worst gradient, relative to its norm; above {tolerance:g} a model is wrong.

{right} of {all} models are right.

| model | package | result | largest error | remark |
|---|---|---|---|---|
"""

Row = dict[str, Any]


def outcome(model: PackageModel) -> Row:
    """Return a model's row: "right", "wrong", "refused", "failed" or "skipped", the error and a remark."""
    absent = next((package for package in model.imports if find_spec(package) is None), None)
    if absent is not None:
        return _row(model, "skipped", remark=f"{absent} is not installed")
    torch.manual_seed(7)
    module = _prepared(model.make())
    batches = [_doubled(model.batch(size)) for size in (2, 3)]
    wrapped = ORTModule(copy.deepcopy(module))
    error = 0.0
    for batch in batches:
        expected = _gradients(module, batch)
        try:
            gradients = _gradients(wrapped, batch)
        except OntrainError as refusal:
            return _row(model, "refused", remark=refusal.problem)
        error = max(error, _error(gradients, expected))
    return _row(model, "right" if error <= TOLERANCE else "wrong", error)


def _row(model: PackageModel, result: str, error: float | None = None, remark: str = "") -> Row:
    return {"package": model.package, "result": result, "error": error, "remark": remark}


def _prepared(module: nn.Module) -> nn.Module:
    module = module.double().train()
    for child in module.modules():
        for name, parameter in child.named_parameters(recurse=False):
            if parameter.dtype is torch.complex64:
                setattr(child, name, nn.Parameter(parameter.detach().to(torch.complex128)))
        if isinstance(child, nn.modules.dropout._DropoutNd):
            child.p = 0.0
    return module


def _doubled(batch: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    return tuple(x.double() if x.is_floating_point() else x for x in batch)


def _gradients(module: nn.Module, batch: tuple[torch.Tensor, ...]) -> dict[str, torch.Tensor]:
    """The loss, as "loss", and the gradients of one step by name."""
    module.zero_grad()
    torch.manual_seed(11)
    loss = module(*batch)
    loss.backward()
    named = {name: p.grad.clone() for name, p in module.named_parameters() if p.grad is not None}
    return {"loss": loss.detach(), **named}


def _error(gradients: Mapping[str, torch.Tensor], expected: Mapping[str, torch.Tensor]) -> float:
    """The largest error relative to a norm; what is 1e-14 of the largest norm or less is rounding."""
    zero = torch.zeros((), dtype=torch.float64)
    floor = 1e-14 * max(float(value.norm()) for value in expected.values())
    worst = 0.0
    for name in {*gradients, *expected}:
        theirs = expected.get(name, zero)
        difference = float((gradients.get(name, zero) - theirs).norm())
        if not difference <= floor:
            worst = max(worst, difference / (float(theirs.norm()) + 1e-300))
    return worst


def section(rows: Mapping[str, Row]) -> str:
    """Return the part of the page that the rows make."""
    packages = sorted({row["package"] for row in rows.values() if row["result"] != "skipped"})
    versions = ", ".join(f"{package} {_version(package)}" for package in ("torch", *packages))
    right = sum(row["result"] == "right" for row in rows.values())
    head = TEXT.format(heading=HEADING, versions=versions, tolerance=TOLERANCE, right=right, all=len(rows))
    return head + "".join(_line(name, row) for name, row in rows.items())


def _version(package: str) -> str:
    """The installed version, or the one on the page for a package whose rows were compared elsewhere."""
    try:
        return version(package).split("+")[0]
    except PackageNotFoundError:
        known = re.search(rf"\b{re.escape(package)} (\d[\w.]*)", PAGE.read_text())
        return known[1].rstrip(".") if known else "unknown"


def _line(name: str, row: Row) -> str:
    error = "" if row["error"] is None else f"{row['error']:.0e}" if row["error"] else "0"
    cells = [name, row["package"], row["result"], error, row["remark"].replace("|", r"\|").replace("\n", " ")]
    return ("| " + " | ".join(cells)).rstrip() + " |\n"


def main() -> None:
    """Compare models and print what came of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="models, as the table names them; all by default")
    parser.add_argument("--write", action="store_true", help=f"renew {TABLE.name} and docs/coverage.md")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    define_vision_operators()
    for name, model in MODELS.items():
        if options.names and name not in options.names:
            continue
        try:
            row = outcome(model)
        except Exception as error:  # noqa: BLE001 - an error that is no refusal is a finding
            row = _row(model, "failed", remark=f"{type(error).__name__}: {error}".splitlines()[0])
        print(_line(name, row), end="", flush=True)
        if options.write:
            known = {**read_rows(TABLE), name: row}
            rows = {each: known[each] for each in MODELS if each in known}
            write_rows(TABLE, rows)
            renew(PAGE, HEADING, section(rows))


if __name__ == "__main__":
    main()
