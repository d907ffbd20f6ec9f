"""The loss curves of two runs of run_pretraining.py in one picture, and how far apart they are.

    $ python compare_runs.py RUN_ONTRAIN RUN_PYTORCH --data PHASE1_HDF5 --data PHASE2_HDF5 --output results/pretraining

writes results/pretraining.svg and results/pretraining.json: both curves, the largest difference between them, and the
unigram entropy of the masked words: the loss of a model that knows how often each word is masked and nothing else, in
nats a word. Loss below it was learned from context.

Exit codes: 0 done; 1 the curves differ by more than --tolerance; 2 a run or the data is at fault.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(1, str(Path(__file__).resolve().parents[1]))
from needs import need

need("ontrain", "torch", "numpy", "typer", "rich", "h5py", "tokenizers")

import json
import platform
import shlex
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from corpus.hdf5 import read
from corpus.workspace import DataError, written
from pretraining.journal import read_rows
from pretraining.picture import Curve, draw

KEYS = ("masked_lm_loss", "next_sentence_loss", "learning_rate")


def unigram_entropy(folder: Path) -> float:
    """Return −Σ p log p of the words masked in the training files of a folder, in nats.

    Raises:
        DataError: there is no such file, or one is damaged.
    """
    counts = np.zeros(1, np.int64)
    for path in sorted(folder.glob("*training*.hdf5")):
        found = read(path)
        words = np.bincount(found.masked_lm_ids[found.masked_lm_positions > 0])
        counts = np.pad(counts, (0, max(len(words) - len(counts), 0)))
        counts[: len(words)] += words
    if not counts.any():
        raise DataError(f"--data {folder} has no HDF5 file with training in its name")
    shares = counts[counts > 0] / counts.sum()
    return float(-(shares * np.log(shares)).sum())


def curves(run: Path) -> tuple[list[dict[str, float]], dict[str, Any]]:
    """Return the rows of a run, steps counted over both phases, and its flags.

    Raises:
        DataError: the folder holds no log of a run.
    """
    rows: list[dict[str, float]] = []
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


def main(
    runs: Annotated[list[Path], typer.Argument(help="Output folders of two runs.")],
    data: Annotated[list[Path], typer.Option("--data", help="The HDF5 files of each phase.")],
    output: Annotated[Path, typer.Option("--output", help="Picture and numbers, without suffix.")],
    tolerance: Annotated[float, typer.Option("--tolerance", help="Between the curves, of the loss.")] = 0.01,
) -> None:
    """Compare two runs; see the top of compare_runs.py."""
    try:
        apart = _compare(runs, data, output, tolerance)
    except DataError as error:
        print(f"error: {error}", file=sys.stderr)
        raise typer.Exit(2) from None
    raise typer.Exit(int(apart > tolerance))


def _compare(runs: Sequence[Path], data: Sequence[Path], output: Path, tolerance: float) -> float:
    if len(runs) != 2:
        raise DataError(f"{len(runs)} runs are given, two are compared")
    (first, flags), (second, others) = (curves(run) for run in runs)
    if [row["step"] for row in first] != [row["step"] for row in second]:
        raise DataError(f"the runs have different steps: {len(first)} rows and {len(second)}")
    entropies = [unigram_entropy(folder) for folder in data]
    values = [np.array([row["masked_lm_loss"] for row in rows]) for rows in (first, second)]
    apart = float(np.abs(values[0] - values[1]).max())
    names = [flags["engine"], others["engine"]]
    ends = {
        f"phase {phase}": {
            name: float(np.mean([row["masked_lm_loss"] for row in rows if row["phase"] == phase][-20:]))
            for name, rows in zip(names, (first, second), strict=True)
        }
        | {"unigram entropy": entropy}
        for phase, entropy in enumerate(entropies, 1)
    }
    made = {
        "masked_lm_loss, mean of the last 20 steps": ends,
        "largest difference of the curves": apart,
        "tolerance": tolerance,
        "command": shlex.join(["python", *sys.argv]),
        "versions": {name: version(name) for name in ("ontrain", "torch", "transformers")}
        | {"python": platform.python_version()},
        "runs": [
            {"engine": name, "curve": [[row["step"], *(round(row[key], 6) for key in KEYS)] for row in rows]}
            for name, rows in zip(names, (first, second), strict=True)
        ],
        "columns": ["step", *KEYS],
    }
    with written(output.with_suffix(".json")) as file:
        file.write((json.dumps(made) + "\n").encode())
    steps = [row["step"] for row in first]
    drawn = [Curve(name, list(zip(steps, one.tolist(), strict=True))) for name, one in zip(names, values, strict=True)]
    levels = [(f"unigram entropy {entropy:.2f}", entropy) for entropy in entropies[:1]]
    border = next((row["step"] for row in first if row["phase"] == 2), None)
    with written(output.with_suffix(".svg")) as file:
        file.write(draw("Loss of masked words, nats", drawn, levels, border).encode())
    for phase, found in ends.items():
        print(f"{phase}: " + ", ".join(f"{name} {value:.4f}" for name, value in found.items()))
    print(f"largest difference of the curves {apart:.2g} (tolerance {tolerance:g}); {output.with_suffix('.svg')}")
    return apart


if __name__ == "__main__":
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(main)
    app()
