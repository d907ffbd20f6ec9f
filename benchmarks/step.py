"""A training step of ontrain beside eager PyTorch, torch.compile and the incumbent, alternating in one run.

    python -m benchmarks.step [--model bert] [--rounds 8] [--layers 4] [--engine ontrain --engine eager …]

Steps are timed after each batch of the workload was seen once, at least two, so all plans are there:
`python -m benchmarks.epoch` times batches as they come. Each engine lives in a process of its own with empty caches,
and the processes take turns, one step each, so that all of them meet the same moods of the machine. Ratios are medians
over the rounds of (other engine's time / ontrain's time).

- "bert-logits" and "gpt2-logits" compute an accuracy from each step's logits; the other loops look at the loss alone.
- "ontrain-aten" takes eager PyTorch's matrix products.
- "ontrain-budget" may take 0.55 of its working memory and computes activations again (only where asked for).
- "ontrain-hidden" is told that padding is no answer, which is another loss (xquad only).
- "ortmodule" is eager's loop around the wrapped module.
- "eager-malloc" is eager with glibc told to keep freed memory, and torch to ask for large pages.
- "incumbent" is onnxruntime-training 1.19.2 (`python -m benchmarks.peers` installs it).

Peak memory is the process's largest resident size above what it had with the model built; faults are minor page faults
a step. Rows go to benchmarks/results/step.jsonl.
"""

from __future__ import annotations

import functools
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from typing import Any, ClassVar

from benchmarks.commands import Command
from benchmarks.peers import PeerMissingError, incumbent_python
from benchmarks.rows import append_row
from benchmarks.workloads import ENGINES, MODELS, DataMissingError

_MALLOC = {
    "MALLOC_MMAP_THRESHOLD_": str(8 << 30), "MALLOC_TRIM_THRESHOLD_": str(16 << 30), "MALLOC_TOP_PAD_": "0",
    "THP_MEM_ALLOC_ENABLE": "1",
}  # fmt: skip


class Worker:
    """An engine's process.

    Attributes:
        starts_alone: whether the next process waits until this one has made its first step.
    """

    starts_alone = True

    start: ClassVar[Callable[..., Any]] = subprocess.Popen
    """Starts it. Tests fork it from a process that has imported torch."""

    def __init__(self, engine: str, model: str, layers: int) -> None:
        self._folder = tempfile.TemporaryDirectory()
        caches = {
            name: os.path.join(self._folder.name, name) for name in ("ONTRAIN_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR")
        }
        environment = {**os.environ, **caches, **(_MALLOC if engine == "eager-malloc" else {})}
        self.process = self.start(
            self._command(engine, model, layers), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            stderr=subprocess.DEVNULL if engine == "incumbent" else None, env=environment,
        )  # fmt: skip
        self.loss = 0.0
        self.times: list[float] = []
        self.faults: list[int] = []
        self.peak = 0
        if self.starts_alone:
            self.wait()

    @functools.cached_property
    def first(self) -> dict[str, Any]:
        """What the process said of its first step, once it is made."""
        return self._read()

    def wait(self) -> None:
        """Wait until the first step is made."""
        _ = self.first

    def _command(self, engine: str, model: str, layers: int) -> list[str]:
        if engine != "incumbent":
            return [sys.executable, "-m", "benchmarks.worker", engine, model, str(layers)]
        command = [sys.executable, "-m", "benchmarks.worker", "export", model, str(layers), self._folder.name]
        if code := subprocess.run(command, stdout=subprocess.DEVNULL).returncode:
            raise PeerMissingError(f"{model} cannot be exported for it: the exporter ended with {code}")
        return [str(incumbent_python()), "-m", "benchmarks.incumbent_worker", self._folder.name]

    def step(self, count: int = 1, *, keep: bool = True) -> None:
        """Make steps and keep their times."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{count}\n")
        self.process.stdin.flush()
        answer = self._read()
        self.peak = answer["peak"]
        self.loss = answer.get("loss", self.loss)
        if keep:
            self.times += answer["times"]
            self.faults += answer["faults"]

    def close(self) -> None:
        """End the process."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()
        self._folder.cleanup()

    def _read(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("@"):
                answer: dict[str, Any] = json.loads(line[1:])
                return answer
        raise RuntimeError(f"the worker ended with {self.process.wait()}")


def measure(
    model: str, layers: int, engines: list[str], rounds: int, worker: type[Worker] = Worker
) -> dict[str, dict[str, float]]:
    """Return each engine's figures; the engines alternate step by step after each batch was seen once, at least two."""
    workers = dict[str, Worker]()
    for engine in engines:
        try:
            workers[engine] = worker(engine, model, layers)
        except PeerMissingError as error:
            print(f"{model}: {engine} left out, {error}")
    for process in workers.values():
        process.step(max(2, process.first["batches"]), keep=False)
    for _ in range(rounds):
        for process in workers.values():
            process.step()
    figures = {}
    for engine, process in workers.items():
        process.close()
        ours = next(iter(workers.values())).times
        ratios = [theirs / mine for theirs, mine in zip(process.times, ours, strict=True)]
        figures[engine] = {
            "step_s": statistics.median(process.times),
            "step_min_s": min(process.times),
            "step_max_s": max(process.times),
            "ratio": statistics.median(ratios),
            "ratio_min": min(ratios),
            "ratio_max": max(ratios),
            "first_step_s": process.first["first"],
            "peak_bytes": process.peak - process.first["before"],
            "faults": statistics.median(process.faults),
            "first_loss": process.first["loss"],
            "last_loss": process.loss,
            **process.first.get("facts", {}),
        }
    return figures


def show(title: str, figures: dict[str, dict[str, float]]) -> None:
    """Print a table."""
    columns = (
        f"{'step s':>9}{'min–max s':>15}{'time / first':>14}{'min–max':>13}{'first s':>9}{'peak MiB':>10}{'faults':>9}"
    )
    print(f"\n{title}\n{'engine':<14}{columns}")
    for engine, f in figures.items():
        spread, ratios = f"{f['step_min_s']:.2f}–{f['step_max_s']:.2f}", f"{f['ratio_min']:.2f}–{f['ratio_max']:.2f}"
        print(
            f"{engine:<14}{f['step_s']:>9.3f}{spread:>15}{f['ratio']:>13.2f}×{ratios:>13}"
            f"{f['first_step_s']:>9.1f}{f['peak_bytes'] / 2**20:>10.0f}{f['faults']:>9.0f}"
        )


def main() -> None:
    """Print the table and append a row per model."""
    parser = Command(__doc__)
    parser.add_argument("--model", action="append", choices=MODELS, help="may be repeated; by default all")
    parser.add_argument(
        "--engine",
        action="append",
        choices=ENGINES,
        help="ratios refer to the first; by default those that fit the workload",
    )
    parser.add_argument("--rounds", type=int, default=8, help="alternating rounds")
    parser.add_argument("--layers", type=int, default=4, help="of the model")
    parser.add_argument("--no-row", action="store_true", help="print only")
    arguments = parser.parse_args()
    for model in arguments.model or MODELS:
        engines = list(arguments.engine or _engines(model))
        try:
            figures = measure(model, arguments.layers, engines, arguments.rounds)
        except DataMissingError as error:
            print(f"\n{model}: left out, {error}")
            continue
        if not figures:
            continue
        show(f"{model}, {arguments.layers} layers, {arguments.rounds} alternating rounds", figures)
        if not arguments.no_row:
            row = {
                "benchmark": "step", "model": model, "layers": arguments.layers, "rounds": arguments.rounds,
                "caches": "empty",
            }  # fmt: skip
            append_row("step", {**row, "engines": figures})


def _engines(model: str) -> list[str]:
    """All engines for the fixed shapes; for real lengths those that need no plan by hand."""
    if model in ("cola", "xquad"):
        return ["ontrain", *(["ontrain-hidden"] if model == "xquad" else []), "ortmodule", "eager", "eager-malloc"]
    if model.endswith("-logits"):
        return ["ontrain", "ortmodule", "eager", "eager-malloc", "compile"]
    engines = [engine for engine in ENGINES if engine not in ("ontrain-budget", "ontrain-hidden")]
    try:
        incumbent_python()
    except PeerMissingError as error:
        print(f"incumbent left out: {error}")
        engines.remove("incumbent")
    return engines


if __name__ == "__main__":
    main()
