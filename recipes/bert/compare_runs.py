"""The loss curves of two runs of run_pretraining.py in one picture, and how far apart they are.

    $ python compare_runs.py RUN_ONTRAIN RUN_PYTORCH --data PHASE1_HDF5 --data PHASE2_HDF5 --output results/pretraining
    $ python compare_runs.py RUN_ONTRAIN RUN_PYTORCH --data PHASE1_HDF5 --output results/phase1
    $ python compare_runs.py RUN_FP32 RUN_BF16 --data PHASE1_HDF5 --output results/bf16 --tolerance 0.1

The first writes results/pretraining.svg and results/pretraining.json: both curves, the largest difference between them,
and the unigram entropy of the masked words: the loss of a model that knows how often each word is masked and nothing
else, in nats a word. Loss below it was learned from context.

Exit codes: 0 done; 1 the curves differ by more than --tolerance; 2 a run or the data is at fault.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(1, str(Path(__file__).resolve().parents[1]))
from harness.needs import need

need("ontrain", "torch", "numpy", "typer", "rich", "h5py", "tokenizers")

import json
from dataclasses import dataclass
from typing import Annotated, Any

import typer
from harness.files import DataError, written
from harness.journal import read_rows
from harness.options import execute, flag, parse
from harness.picture import draw
from harness.provenance import command_line, versions

Rows = list[dict[str, float]]
KEYS = ("masked_lm_loss", "next_sentence_loss", "learning_rate")


@dataclass(frozen=True)
class Options:
    """The flags; the top of compare_runs.py is their manual."""

    runs: Annotated[list[Path], flag("Output folders of two runs.", argument=True, missing="no such folder")]
    data: Annotated[list[Path], flag("The folder of each phase's HDF5 files.", missing="no such folder")]
    output: Annotated[Path, flag("Picture and numbers, without suffix.")]
    tolerance: Annotated[float, flag("Between the curves, of the loss.")] = 0.01


if __name__ == "__main__":
    OPTIONS = parse(Options)  # before what takes its time to import

import numpy as np
from corpus.hdf5 import read


def unigram_entropy(folder: Path) -> float:
    """Return −Σ p log p of the words masked in the training files of a folder, in nats."""
    counts = np.zeros(1, np.int64)
    for path in sorted(folder.glob("*training*.hdf5")):
        instances = read(path)
        words = np.bincount(instances.masked_lm_ids[instances.masked_lm_positions > 0])
        counts = np.pad(counts, (0, max(len(words) - len(counts), 0)))
        counts[: len(words)] += words
    if not counts.any():
        raise DataError(f"--data {folder} has no HDF5 file with training in its name")
    shares = counts[counts > 0] / counts.sum()
    return float(-(shares * np.log(shares)).sum())


def curves(run: Path) -> tuple[Rows, dict[str, Any]]:
    """Return the rows of a run, steps counted over both phases, and its flags."""
    rows: Rows = []
    flags: dict[str, Any] = {}
    for row in read_rows(run / "dllogger.json"):
        data, at = row["data"], row["step"]
        flags |= data.get("Config", {})
        if "average_loss" in data:
            before = flags["phase1_end_step"] if data["phase"] == 2 else 0
            rows.append({"step": before + at[1], "phase": data["phase"], **{key: data[key] for key in KEYS}})
    if not rows:
        raise DataError(f"{run} holds no dllogger.json with rows of a run")
    return rows, flags


def ends_of(names: list[str], runs: tuple[Rows, Rows], entropies: list[float]) -> dict[str, dict[str, float]]:
    """Return the mean loss of each phase's last 20 rows, by run, beside the phase's unigram entropy."""
    ends: dict[str, dict[str, float]] = {}
    for phase, entropy in enumerate(entropies, 1):
        losses = [[row["masked_lm_loss"] for row in rows if row["phase"] == phase] for rows in runs]
        means = [float(np.mean(curve[-20:])) for curve in losses]
        ends[f"phase {phase}"] = dict(zip(names, means, strict=True)) | {"unigram entropy": entropy}
    return ends


def picture_of(names: list[str], rows: Rows, curves: list[np.ndarray], entropies: list[float]) -> str:
    """Draw both curves, the first phase's unigram entropy, and where phase 2 begins."""
    steps = [row["step"] for row in rows]
    points = {name: list(zip(steps, curve.tolist(), strict=True)) for name, curve in zip(names, curves, strict=True)}
    levels = [(f"unigram entropy {entropy:.2f}", entropy) for entropy in entropies[:1]]
    border = next(((row["step"], "phase 2") for row in rows if row["phase"] == 2), None)
    return draw("Loss of masked words, nats", points, levels, border)


def compare(options: Options) -> None:
    if len(options.runs) != 2:
        raise DataError(f"{len(options.runs)} runs are given, two are compared")
    (first, flags), (second, others) = (curves(run) for run in options.runs)
    if [row["step"] for row in first] != [row["step"] for row in second]:
        raise DataError(f"the runs have different steps: {len(first)} rows and {len(second)}")
    entropies = [unigram_entropy(folder) for folder in options.data]
    values = [np.array([row["masked_lm_loss"] for row in rows]) for rows in (first, second)]
    apart = float(np.abs(values[0] - values[1]).max())
    names = [flags["engine"], others["engine"]]
    ends = ends_of(names, (first, second), entropies)
    comparison = {
        "masked_lm_loss, mean of the last 20 steps": ends,
        "largest difference of the curves": apart,
        "tolerance": options.tolerance,
        "command": command_line(),
        "versions": versions("transformers"),
        "runs": [
            {"engine": name, "curve": [[row["step"], *(round(row[key], 6) for key in KEYS)] for row in rows]}
            for name, rows in zip(names, (first, second), strict=True)
        ],
        "columns": ["step", *KEYS],
    }
    with written(options.output.with_suffix(".json")) as file:
        file.write((json.dumps(comparison) + "\n").encode())
    picture = options.output.with_suffix(".svg")
    with written(picture) as file:
        file.write(picture_of(names, first, values, entropies).encode())
    for phase, losses in ends.items():
        print(f"{phase}: " + ", ".join(f"{name} {value:.4f}" for name, value in losses.items()))
    print(f"largest difference of the curves {apart:.2g} (tolerance {options.tolerance:g}); {picture}")
    if apart > options.tolerance:
        raise typer.Exit(1)


if __name__ == "__main__":
    execute(compare, OPTIONS)
