"""Two runs' statistics, a file a step, for a tool that shows differences of texts."""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Sequence
from pathlib import Path

from ontrain.errors import InputError, OptionError
from ontrain.places import step_number
from ontrain.training.inspection.folder import ORDER, read_order, read_statistics

__all__ = ["main", "merge_runs"]

_FOLDERS = ("merge_pt", "merge_ort")


def merge_runs(pt_dir: str, ort_dir: str, output_dir: str, *, overwrite: bool = False) -> None:
    """Write each step of two runs as one file, values in the order of the first run's first step.

    Args:
        pt_dir: what a `StatisticsSubscriber` wrote of PyTorch's run.
        ort_dir: the same of ORTModule's.
        output_dir: gets the folders merge_pt and merge_ort with a file `step_{n}_.txt` a step.
        overwrite: whether `output_dir` may be there already.

    Raises:
        InputError: a folder holds no run.
        OptionError: `output_dir` is there already.
    """
    target = Path(output_dir)
    if target.exists() and not overwrite:
        raise OptionError(f"the output folder {target} exists", way_out="give another one, or --overwrite")
    runs = [_steps(Path(folder)) for folder in (pt_dir, ort_dir)]
    order = read_order(runs[0][0])
    for name, steps in zip(_FOLDERS, runs, strict=True):
        folder = target / name
        if folder.exists():
            shutil.rmtree(folder)
        folder.mkdir(parents=True)
        for step in steps:
            texts = [read_statistics(step, file) for file in order if (step / file).is_file()]
            (folder / f"{step.name}_.txt").write_text("\n".join([*texts, ""]), encoding="utf-8")


def _steps(folder: Path) -> list[Path]:
    paths = sorted(folder.iterdir() if folder.is_dir() else [], key=lambda path: step_number(path) or 0)
    steps = [path for path in paths if step_number(path) is not None]
    if not steps or not (steps[0] / ORDER).is_file():
        raise InputError(f"{folder} holds no run", way_out="give the output_dir of a StatisticsSubscriber")
    return steps


def main(arguments: Sequence[str] | None = None) -> None:
    """Run `python -m ontrain.training.utils.hooks.merge_activation_summary`."""
    parser = argparse.ArgumentParser(description="Merge the statistics of two runs, a file a step.")
    parser.add_argument("--pt_dir", required=True, help="folder of PyTorch's run")
    parser.add_argument("--ort_dir", required=True, help="folder of ORTModule's run")
    parser.add_argument("--output_dir", required=True, help="where merge_pt and merge_ort are written")
    parser.add_argument("--overwrite", action="store_true", help="write into a folder that exists")
    options = parser.parse_args(arguments)
    merge_runs(options.pt_dir, options.ort_dir, options.output_dir, overwrite=options.overwrite)
