"""timm's own test of a backward pass, `test_model_backward`, with the model in an ORTModule, over timm's names.

    python -m tests.capture.timm_models [NAME ...] [--every N] [--start K] [--minutes M] [--write]

takes the names below 20 million parameters: first one of each of timm's files, then a second of each, and so on. Of
these it takes every N-th from the K-th on that timm_models.json lacks, and begins no new one after M minutes. As in
timm's test, each model is in training mode with 42 classes, the mean of its output is differentiated, and no parameter
may be left without a gradient that has one in eager PyTorch. Here the gradients are compared with eager PyTorch's in
double precision besides. Repeated blocks are cut to one, images are small where the model allows it, and dropout is
off. A line is printed for each model, and counts by result at the end. With --write the rows join timm_models.json and
docs/coverage.md.
"""

from __future__ import annotations

import argparse
import collections
import copy
import itertools
import time
import warnings
from collections.abc import Iterator, Mapping
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ontrain.errors import OntrainError
from ontrain.training.ortmodule import ORTModule
from tests.page import read_rows, renew, write_rows
from tests.training.compiled.suite.entry import without_dropout
from tests.training.compiled.suite.pictures import without_repetition

TABLE = Path(__file__).with_suffix(".json")
PAGE = Path(__file__).parents[2] / "docs" / "coverage.md"
LARGEST = 20_000_000
"""Parameters of what is tried."""
TOLERANCE = 1e-5
SIZES = (64, 96, 128, 224, 256)
"""Heights of images, of which a model is given the first that its forward takes."""

HEADING = "## timm's test of a backward pass"
TEXT = """\
{heading}

Written by `python -m tests.capture.timm_models --write`; do not edit. Last on {day}, with timm {timm}, torch {torch}.

The models are timm's names below {largest} million parameters, taken from all of its files in turn, as in timm's own
`test_model_backward`: in training mode, with the mean of the output differentiated. Each is wrapped in `ORTModule`, in
double precision, with repeated blocks cut to one, small images and no dropout. Output and every gradient are compared
with eager PyTorch's; a model is wrong where one differs by more than {tolerance:g} of its norm, or is missing.

{right} of {tried} models of {files} files are right. {absent} more do not run in eager PyTorch at the sizes tried.
{table}"""

Row = dict[str, Any]


def in_turn() -> Iterator[str]:
    """Yield timm's names: the first of each of its files, then the second of each, and so on."""
    import timm

    by_file = [timm.list_models(module=module) for module in timm.list_modules()]
    for names in itertools.zip_longest(*by_file):
        yield from filter(None, names)


def _file(name: str) -> str:
    import timm

    return str(timm.model_entrypoint(name).__module__)


def _parameters(name: str) -> int:
    import timm

    with torch.device("meta"):
        return sum(p.numel() for p in timm.create_model(name, pretrained=False).parameters())


def outcome(name: str) -> Row:
    """Return a model's row: "right", "wrong", "refused", "failed" or "not made", the error and a remark."""
    torch.manual_seed(7)
    sized = _in_small(name)
    if sized is None:
        return _row("not made", remark="eager PyTorch runs it at none of the sizes")
    module, x = sized
    wrapped = ORTModule(copy.deepcopy(module))
    expected = _gradients(module, x)
    try:
        gradients = _gradients(wrapped, x)
    except OntrainError as refusal:
        return _row("refused", remark=refusal.problem)
    if gradients.keys() != expected.keys():
        return _row("wrong", remark=f"no gradient: {', '.join(sorted(gradients.keys() ^ expected.keys()))}")
    floor = 1e-13 * max(float(value.norm()) for value in expected.values())
    errors = {
        key: max(0.0, float((gradients[key] - value).norm()) - floor) / (float(value.norm()) + 1e-300)
        for key, value in expected.items()
    }
    worst = max(errors, key=errors.__getitem__)
    right = errors[worst] <= TOLERANCE
    return _row("right" if right else "wrong", errors[worst], "" if right else worst)


def _row(result: str, error: float | None = None, remark: str = "") -> Row:
    return {"result": result, "error": error, "remark": remark}


def _in_small(name: str) -> tuple[nn.Module, torch.Tensor] | None:
    """A model in double precision, and a batch of two of the smallest images that eager PyTorch runs it on."""
    import timm

    fixed = timm.get_pretrained_cfg_value(name, "input_size") or (3, 224, 224)
    for cut, size in itertools.product((without_repetition, _whole), sorted({*SIZES, fixed[-1]})):
        for settings in ({"img_size": size}, {}):
            try:
                model = timm.create_model(name, pretrained=False, num_classes=42, **settings)
                model = without_dropout(cut(model).double().train())
                x = torch.randn(2, fixed[0], size, size, dtype=torch.float64)
                _gradients(copy.deepcopy(model), x)
            except Exception:  # noqa: BLE001 - timm says in many ways that a size does not fit
                continue
            return model, x
    return None


def _whole(module: nn.Module) -> nn.Module:
    return module


def _gradients(model: nn.Module, x: torch.Tensor) -> dict[str, torch.Tensor]:
    """The output's mean, as "output", and the gradients of it by name."""
    model.zero_grad()
    output = model(x)
    output = torch.cat(output) if isinstance(output, tuple) else output
    output.mean().backward()
    named = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    return {"output": output.detach(), **named}


def summary(rows: Mapping[str, Row]) -> str:
    """Return counts by result and, for what is refused, by reason."""
    counts = collections.Counter(row["result"] for row in rows.values())
    lines = [f"{count} {result}" for result, count in counts.most_common()]
    return "\n".join([f"timm {version('timm')}, torch {torch.__version__}, {len(rows)} models", *lines])


def section(rows: Mapping[str, Row]) -> str:
    """Return the part of the page that the rows make, with a line for each model that is not right."""
    tried = {name: row for name, row in rows.items() if row["result"] != "not made"}
    others = [(name, row) for name, row in tried.items() if row["result"] != "right"]
    lines = [f"| {name} | {row['result']} | {row['remark'].replace('|', chr(92) + '|')} |\n" for name, row in others]
    table = "".join(["\n| model | result | remark |\n|---|---|---|\n", *lines]) if lines else ""
    return TEXT.format(
        heading=HEADING, day=date.today(), timm=_version("timm"), torch=_version("torch"), tolerance=TOLERANCE,
        largest=LARGEST // 10**6, right=len(tried) - len(others), tried=len(tried), absent=len(rows) - len(tried),
        files=len(set(map(_file, tried))), table=table,
    )  # fmt: skip


def _version(package: str) -> str:
    return version(package).split("+")[0]


def main() -> None:
    """Compare models and print what came of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="models; by default those that --every and --start choose")
    parser.add_argument("--every", type=int, default=1, help="one name in so many")
    parser.add_argument("--start", type=int, default=0, help="the first of them")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin no model after so long")
    parser.add_argument("--write", action="store_true", help=f"renew {TABLE.name} and docs/coverage.md")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    until = time.monotonic() + 60 * options.minutes
    known = read_rows(TABLE)
    rows: dict[str, Row] = {}
    for name in options.names or itertools.islice(in_turn(), options.start, None, options.every):
        if time.monotonic() > until:
            break
        if not options.names and (name in known or _parameters(name) >= LARGEST):
            continue
        try:
            row = outcome(name)
        except Exception as error:  # noqa: BLE001 - an error that is no refusal is a finding
            row = _row("failed", remark=f"{type(error).__name__}: {error}".splitlines()[0])
        rows[name] = row
        print(name, row["result"], "" if row["error"] is None else f"{row['error']:.0e}", row["remark"], flush=True)
        if options.write:
            write_rows(TABLE, dict(sorted({**read_rows(TABLE), name: row}.items())))
    if options.write:
        renew(PAGE, HEADING, section(read_rows(TABLE)))
    print(summary(rows))


if __name__ == "__main__":
    main()
