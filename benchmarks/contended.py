"""A training step beside other work on the machine: how much longer it takes, of ontrain and of eager PyTorch.

    python -m benchmarks.contended [--model bert] [--layers 2] [--rounds 8] [--quick]

Three cases: an idle machine, one busy loop beside, and a process beside that multiplies matrices on as many threads as
there are cores. In each case every engine starts anew, in a process of its own; they take turns, one step each.
"ontrain-empty" is an ORTModule in eager's loop whose file of products is empty: what it measures, it measures in this
case. "ontrain-polluted" finds a file in which each product has times of a machine that was busy with other things, and
eager's formulation as the fastest. "slowdown" is the median over an engine's steps by its own median on the idle
machine, and "by eager's" is that by eager's slowdown: 1.2 is the aim. Rows go to benchmarks/results/contended.jsonl.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.commands import Command
from benchmarks.rows import append_row
from benchmarks.step import Worker
from benchmarks.workloads import MODELS

ENGINES = {"eager": "eager", "ontrain-empty": "ortmodule", "ontrain-polluted": "ortmodule"}
_MULTIPLY = "import torch; a = torch.randn(1500, 1500)\nwhile True: a @ a"
NEIGHBOURS = {"idle": None, "busy loop": "while True: pass", "multiplying": _MULTIPLY}
AIM = 1.2
_SLOW = 15
"""How many times too long the times of a polluted file are."""
_WARM, _SETTLED = 3, 3.0
"""Steps that are not counted, and seconds that a neighbour has to get going."""


class _Engine(Worker):
    """An engine's process, with a file of products to find."""

    def __init__(self, engine: str, model: str, layers: int, products: str | None = None) -> None:
        self._products = products
        super().__init__(ENGINES[engine], model, layers)

    def _command(self, engine: str, model: str, layers: int) -> list[str]:
        if self._products is not None:
            self.file.parent.mkdir()
            self.file.write_text(self._products, encoding="utf-8")
        return super()._command(engine, model, layers)

    @property
    def file(self) -> Path:
        """Where the process keeps its products."""
        return Path(self._folder.name) / "ONTRAIN_CACHE_DIR" / "products.json"


@contextmanager
def _beside(program: str | None) -> Iterator[None]:
    if program is None:
        yield
        return
    process = subprocess.Popen([sys.executable, "-c", program])
    try:
        time.sleep(_SETTLED)
        yield
    finally:
        process.kill()
        process.wait()


def polluted(text: str) -> str:
    """Make a file of products one of a busy machine: eager's formulation, and times far too long."""
    machines = json.loads(text)
    for products in machines.values():
        for name, entry in products.items():
            least = min(entry["seconds"].values(), default=0.004)
            seconds = {way: _SLOW * least * (1.0 if way == "aten" else 1.2) for way in ("aten", "packed", "linear")}
            products[name] = {"taken": "aten", "seconds": seconds}
    return json.dumps(machines)


def measure(model: str, layers: int, rounds: int) -> dict[str, dict[str, list[float]]]:
    """Return the seconds of each engine's steps in each case."""
    first = _Engine("ontrain-empty", model, layers)
    products = polluted(first.file.read_text(encoding="utf-8"))
    first.close()
    times: dict[str, dict[str, list[float]]] = {}
    for case, program in NEIGHBOURS.items():
        with _beside(program):
            workers = {
                engine: _Engine(engine, model, layers, products if engine == "ontrain-polluted" else None)
                for engine in ENGINES
            }
            for process in workers.values():
                process.step(_WARM, keep=False)
            for _ in range(rounds):
                for process in workers.values():
                    process.step()
            for process in workers.values():
                process.close()
        times[case] = {engine: process.times for engine, process in workers.items()}
    return times


def figures_of(times: dict[str, dict[str, list[float]]]) -> dict[str, dict[str, dict[str, float]]]:
    """Return, by case and engine, the median seconds, the slowdown, and the slowdown by eager's."""
    figures: dict[str, dict[str, dict[str, float]]] = {}
    for case, engines in times.items():
        medians = {engine: statistics.median(seconds) for engine, seconds in engines.items()}
        slowdowns = {engine: median / statistics.median(times["idle"][engine]) for engine, median in medians.items()}
        figures[case] = {
            engine: {
                "step_s": medians[engine],
                "step_min_s": min(engines[engine]),
                "step_max_s": max(engines[engine]),
                "slowdown": slowdowns[engine],
                "by_eager": slowdowns[engine] / slowdowns["eager"],
            }
            for engine in engines
        }
    return figures


def main() -> None:
    """Print the table and append a row."""
    parser = Command(__doc__)
    parser.add_argument("--model", choices=MODELS, default="bert", help="a workload")
    parser.add_argument("--layers", type=int, default=2, help="of the model")
    parser.add_argument("--rounds", type=int, default=8, help="alternating rounds")
    parser.add_argument("--quick", action="store_true", help="three rounds of one layer, and no row")
    parser.add_argument("--no-row", action="store_true", help="print only")
    arguments = parser.parse_args()
    layers, rounds = (1, 3) if arguments.quick else (arguments.layers, arguments.rounds)
    figures = figures_of(measure(arguments.model, layers, rounds))
    print(f"\n{arguments.model}, {layers} layers, {rounds} alternating rounds, medians")
    print(f"{'case':<14}{'engine':<18}{'step s':>9}{'min–max s':>15}{'slowdown':>10}{'by eager’s':>12}")
    for case, engines in figures.items():
        for engine, f in engines.items():
            spread = f"{f['step_min_s']:.2f}–{f['step_max_s']:.2f}"
            late = "  above the aim" if f["by_eager"] > AIM else ""
            print(
                f"{case:<14}{engine:<18}{f['step_s']:>9.3f}{spread:>15}{f['slowdown']:>9.2f}×{f['by_eager']:>12.2f}{late}"
            )
    if not (arguments.no_row or arguments.quick):
        row = {"benchmark": "contended", "model": arguments.model, "layers": layers, "rounds": rounds}
        append_row("contended", {**row, "cases": figures})


if __name__ == "__main__":
    main()
