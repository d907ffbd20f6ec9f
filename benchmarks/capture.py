"""Seconds that ontrain adds to a process before its first step: its import, and the capture of BERT-base.

    python -m benchmarks.capture [--repeats 5] [--layers 12]

`torch` is a fresh process that imports torch alone, `ontrain` one that imports ORTModule too; the two alternate, and
the difference of their medians is what the import adds. `export` is torch.export's own time for BERT-base in training
mode with varying batch and length, `translate` the way from its program to ONNX: medians over fresh processes.
Rows go to benchmarks/results/capture.jsonl.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time

from benchmarks.commands import Command
from benchmarks.fresh import in_fresh_process, report
from benchmarks.rows import append_row

IMPORTS = {"torch": "import torch", "ontrain": "import torch, ontrain, ontrain.training.ortmodule"}


def measure_here(layers: int) -> dict[str, float]:
    """Capture BERT-base once; return the seconds of each phase and the number of nodes."""
    import torch
    from transformers import BertConfig, BertForMaskedLM

    from ontrain.capture import capture

    model = BertForMaskedLM(BertConfig(num_hidden_layers=layers)).train()
    ids = torch.randint(0, 1000, (4, 32))
    batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids}
    captured = capture(model, (), batch, dynamic=[{0: "batch", 1: "sequence"} for _ in batch])
    return {**captured.seconds, "nodes": len(captured.model.graph)}


def main() -> None:
    """Print the table and append a row."""
    parser = Command(__doc__)
    parser.add_argument("--repeats", type=int, default=5, help="measurements of each")
    parser.add_argument("--layers", type=int, default=12, help="of the model")
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one is not None:
        report(measure_here(arguments.one))
        return
    imports: dict[str, list[float]] = {name: [] for name in IMPORTS}
    for _ in range(arguments.repeats):
        for name, statement in IMPORTS.items():
            imports[name].append(_seconds([sys.executable, "-c", statement]))
    runs = [in_fresh_process("benchmarks.capture", "--one", str(arguments.layers)) for _ in range(arguments.repeats)]
    seconds = {f"import {name}": statistics.median(times) for name, times in imports.items()}
    seconds["added by the import"] = seconds["import ontrain"] - seconds["import torch"]
    seconds.update((phase, statistics.median(run[phase] for run in runs)) for phase in ("export", "translate"))
    for name, figure in seconds.items():
        print(f"{name:>20} {figure:8.3f} s")
    row = {"benchmark": "capture", "layers": arguments.layers, "repeats": arguments.repeats}
    append_row("capture", {**row, "nodes": runs[0]["nodes"], "seconds": seconds, "imports": imports, "runs": runs})


def _seconds(command: list[str]) -> float:
    started = time.perf_counter()
    subprocess.run(command, check=True)
    return time.perf_counter() - started


if __name__ == "__main__":
    main()
