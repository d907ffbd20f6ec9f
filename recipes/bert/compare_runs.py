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
from harness.needs import need

need("ontrain", "torch", "numpy", "typer", "rich", "h5py", "tokenizers")

import json
import platform
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from importlib.metadata import version
from typing import Annotated, Any

import typer
from harness.files import DataError, written
from harness.journal import read_rows
from harness.options import execute, flag, parse

KEYS = ("masked_lm_loss", "next_sentence_loss", "learning_rate")


@dataclass(frozen=True)
class Options:
    """Compare two runs; see the top of compare_runs.py."""

    runs: Annotated[list[Path], flag("Output folders of two runs.", argument=True)]
    data: Annotated[list[Path], flag("The HDF5 files of each phase.")]
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


def curves(run: Path) -> tuple[list[dict[str, float]], dict[str, Any]]:
    """Return the rows of a run, steps counted over both phases, and its flags."""
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
    ends = {
        f"phase {phase}": {
            name: float(np.mean([row["masked_lm_loss"] for row in rows if row["phase"] == phase][-20:]))
            for name, rows in zip(names, (first, second), strict=True)
        }
        | {"unigram entropy": entropy}
        for phase, entropy in enumerate(entropies, 1)
    }
    comparison = {
        "masked_lm_loss, mean of the last 20 steps": ends,
        "largest difference of the curves": apart,
        "tolerance": options.tolerance,
        "command": shlex.join(["python", *sys.argv]),
        "versions": {name: version(name) for name in ("ontrain", "torch", "transformers")}
        | {"python": platform.python_version()},
        "runs": [
            {"engine": name, "curve": [[row["step"], *(round(row[key], 6) for key in KEYS)] for row in rows]}
            for name, rows in zip(names, (first, second), strict=True)
        ],
        "columns": ["step", *KEYS],
    }
    with written(options.output.with_suffix(".json")) as file:
        file.write((json.dumps(comparison) + "\n").encode())
    steps = [row["step"] for row in first]
    points = {name: list(zip(steps, curve.tolist(), strict=True)) for name, curve in zip(names, values, strict=True)}
    levels = [(f"unigram entropy {entropy:.2f}", entropy) for entropy in entropies[:1]]
    border = next((row["step"] for row in first if row["phase"] == 2), None)
    picture = options.output.with_suffix(".svg")
    with written(picture) as file:
        file.write(draw("Loss of masked words, nats", points, levels, border).encode())
    for phase, losses in ends.items():
        print(f"{phase}: " + ", ".join(f"{name} {value:.4f}" for name, value in losses.items()))
    print(f"largest difference of the curves {apart:.2g} (tolerance {options.tolerance:g}); {picture}")
    if apart > options.tolerance:
        raise typer.Exit(1)


# --- the picture: an SVG that any browser and README shows; equal curves make equal bytes -----------------------------

WIDTH, HEIGHT, LEFT, TOP, RIGHT, BOTTOM = 720, 360, 48, 36, 16, 36
COLOURS = ("#0b62a4", "#e07b00", "#3a8f3a")

Points = Sequence[tuple[float, float]]


def draw(title: str, curves: dict[str, Points], levels: Sequence[tuple[str, float]], border: float | None) -> str:
    """Return the curves over each other, the later ones dashed, so that equal ones show both.

    Args:
        title: over the picture.
        curves: points (step, value) by name, at least two points each.
        levels: horizontal lines, named.
        border: a step with a vertical line, where the second phase begins.
    """
    xs = [x for points in curves.values() for x, _ in points]
    ys = [y for points in curves.values() for _, y in points] + [y for _, y in levels]
    low_x, high_x = min(xs), max(xs)
    step = rounded((max(ys) - min(ys)) / 5)
    low_y, high_y = min(ys) // step * step, -(-max(ys) // step) * step

    def place(x: float, y: float) -> tuple[float, float]:
        across = LEFT + (x - low_x) / (high_x - low_x) * (WIDTH - LEFT - RIGHT)
        down = TOP + (high_y - y) / (high_y - low_y) * (HEIGHT - TOP - BOTTOM)
        return round(across, 1), round(down, 1)

    def line(start: tuple[float, float], end: tuple[float, float], colour: str, more: str = "") -> str:
        return f'<line x1="{start[0]:g}" y1="{start[1]:g}" x2="{end[0]:g}" y2="{end[1]:g}" stroke="{colour}"{more}/>'

    def text(x: float, y: float, words: str, anchor: str) -> str:
        return f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" fill="#333">{escape(words)}</text>'

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" '
        'font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{LEFT}" y="20" font-size="14">{escape(title)}</text>',
    ]
    for i in range(round((high_y - low_y) / step) + 1):
        y = low_y + i * step
        parts += [line(place(low_x, y), place(high_x, y), "#ddd")]
        parts += [text(LEFT - 6, place(low_x, y)[1] + 4, f"{y:g}", "end")]
    across = rounded((high_x - low_x) / 6)
    for i in range(int(high_x // across) + 1):
        if low_x <= i * across:
            parts += [text(place(i * across, low_y)[0], HEIGHT - 16, f"{i * across:g}", "middle")]
    parts += [text(WIDTH - RIGHT, HEIGHT - 2, "step", "end")]
    if border is not None:
        parts += [line(place(border, low_y), place(border, high_y), "#999")]
        parts += [text(place(border, high_y)[0] + 4, TOP + 12, "phase 2", "start")]
    for name, y in levels:
        parts += [line(place(low_x, y), place(high_x, y), "#b00020")]
        parts += [text(WIDTH - RIGHT, place(low_x, y)[1] - 5, name, "end")]
    for i, (name, points) in enumerate(curves.items()):
        colour, dash = COLOURS[i % len(COLOURS)], ' stroke-dasharray="5 4"' if i else ""
        path = " ".join(f"{x:g},{y:g}" for x, y in (place(*point) for point in points))
        parts += [f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.5"{dash}/>']
        legend = LEFT + 260 + 120 * i
        parts += [line((legend, 16), (legend + 24, 16), colour, f' stroke-width="2"{dash}')]
        parts += [text(legend + 30, 20, name, "start")]
    return "\n".join([*parts, "</svg>"]) + "\n"


def rounded(value: float) -> float:
    """Return the next of 1, 2, 5, 10 … times a power of ten."""
    power = 10.0 ** (len(str(int(1 / value))) * -1 if value < 1 else len(str(int(value))) - 1)
    return next(power * n for n in (1, 2, 5, 10, 20, 50, 100) if power * n >= value)


if __name__ == "__main__":
    execute(compare, OPTIONS)
