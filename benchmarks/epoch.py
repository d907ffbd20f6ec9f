"""Fine-tuning on batches as they come: no size was seen before, and every second counts from the first step on.

    python -m benchmarks.epoch [--data cola-epoch] [--steps 267] [--engine ontrain --engine eager …]

cola-epoch: BERT on all of CoLA's training sentences once, 32 a batch, each batch padded to its longest. xquad-epoch:
100 batches of 8 windows of XQuAD, each padded to its longest. Each engine lives in a process of its own with empty
caches; the processes take turns, one step each, on the same batch. Capture, tuning and every plan are in the sums.
Ratios are (seconds of the other engine so far / ontrain's). Rows go to benchmarks/results/epoch.jsonl.
"""

from __future__ import annotations

import itertools
import statistics

from benchmarks.commands import Command
from benchmarks.rows import append_row
from benchmarks.step import Worker
from benchmarks.workloads import ENGINES, EPOCHS, DataMissingError

MARKS = (20, 150)
"""Steps after which the sums are written down, beside the last."""
_ENGINES = ("ontrain", "ortmodule", "eager", "eager-malloc")


def measure(data: str, layers: int, engines: list[str], steps: int) -> dict[str, dict[str, float]]:
    """Return each engine's figures: seconds from the first step to each mark, and their ratio to the first engine's."""
    workers: dict[str, Worker] = {}
    for engine in engines:
        workers[engine] = Worker(engine, data, layers)
        workers[engine].times.append(workers[engine].first["first"])
    for _ in range(1, steps):
        for worker in workers.values():
            worker.step()
    figures: dict[str, dict[str, float]] = {}
    marks = sorted({*(mark for mark in MARKS if mark < steps), steps})
    sums = {engine: list(itertools.accumulate(worker.times)) for engine, worker in workers.items()}
    for engine, worker in workers.items():
        worker.close()
        figures[engine] = {
            "first_step_s": worker.first["first"],
            "step_s": statistics.median(worker.times),
            **{f"after_{mark}_s": sums[engine][mark - 1] for mark in marks},
            **{f"ratio_{mark}": sums[engine][mark - 1] / sums[engines[0]][mark - 1] for mark in marks},
            "peak_bytes": worker.peak - worker.first["before"],
            "last_loss": worker.loss,
        }
    return figures


def show(figures: dict[str, dict[str, float]]) -> None:
    """Print a table."""
    first = next(iter(figures.values()))
    marks = [name.removeprefix("ratio_") for name in first if name.startswith("ratio_")]
    heads = "".join(f"{f'{mark} steps':>20}" for mark in marks)
    print(f"{'engine':<14}{'first s':>9}{'median s':>10}{heads}{'peak MiB':>10}")
    for engine, f in figures.items():
        sums = "".join(f"{f[f'after_{mark}_s']:>12.1f} s{f[f'ratio_{mark}']:>5.2f}×" for mark in marks)
        print(f"{engine:<14}{f['first_step_s']:>9.1f}{f['step_s']:>10.3f}{sums}{f['peak_bytes'] / 2**20:>10.0f}")


def main() -> None:
    """Print the table and append a row for each set of batches."""
    parser = Command(__doc__)
    parser.add_argument("--data", action="append", choices=list(EPOCHS), help="may be repeated; by default all")
    parser.add_argument("--steps", type=int, help="by default all batches")
    parser.add_argument("--layers", type=int, default=4, help="of the model")
    parser.add_argument("--engine", action="append", choices=ENGINES, help="the first is 1; by default the table's")
    parser.add_argument("--no-row", action="store_true", help="print only")
    arguments = parser.parse_args()
    for data in arguments.data or EPOCHS:
        steps = min(arguments.steps or EPOCHS[data], EPOCHS[data])
        print(f"\n{data}, {arguments.layers} layers, {steps} batches as they come")
        try:
            figures = measure(data, arguments.layers, list(arguments.engine or _ENGINES), steps)
        except DataMissingError as error:
            print(f"left out, {error}")
            continue
        show(figures)
        if not arguments.no_row:
            row = {"benchmark": "epoch", "data": data, "layers": arguments.layers, "steps": steps, "caches": "empty"}
            append_row("epoch", {**row, "engines": figures})


if __name__ == "__main__":
    main()
