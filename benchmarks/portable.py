"""The artifacts' training step on stock onnxruntime beside onnxruntime-training's own on-device API.

    python -m benchmarks.peers                                once: makes the incumbent's environment
    python -m benchmarks.portable [--model bert] [--rounds 8]

Both get the same forward graph, exported at opset 17 with its dropout, the same batch, and AdamW; both are called
through `training.api`'s Module and Optimizer, from the same code. ontrain's graphs consist of standard operators, which
any onnxruntime runs; the incumbent has kernels for gradients and optimizers. The two take turns, one step each.

bert: 4 layers of BERT-base's width, masked language modelling, 8 × 128 tokens, 15 % labelled.
conv: two convolutions with pooling and two linear layers, 64 pictures of 28 × 28.

Rows go to benchmarks/results/portable.jsonl.
"""

from __future__ import annotations

import subprocess
import sys

from benchmarks import step
from benchmarks.commands import Command
from benchmarks.peers import incumbent_python
from benchmarks.rows import append_row

MODELS = ("bert", "conv")


class _Worker(step.Worker):
    """A process with one of the two runtimes."""

    def _command(self, engine: str, model: str, layers: int) -> list[str]:
        folder = self._folder.name
        export = [sys.executable, "-m", "benchmarks.portable_worker", "export", model, folder]
        subprocess.run(export, check=True, stdout=subprocess.DEVNULL)
        if engine == "incumbent":
            return [str(incumbent_python()), "-m", "benchmarks.incumbent_worker", folder]
        return [sys.executable, "-m", "benchmarks.portable_worker", "serve", folder]


def main() -> None:
    """Print a table for each model and append a row."""
    parser = Command(__doc__)
    parser.add_argument("--model", action="append", choices=MODELS, help="may be repeated; by default all")
    parser.add_argument("--rounds", type=int, default=8, help="alternating rounds")
    arguments = parser.parse_args()
    for model in arguments.model or MODELS:
        figures = measure(model, arguments.rounds)
        step.show(f"{model}, {arguments.rounds} alternating rounds", figures)
        row = {"benchmark": "portable", "model": model, "rounds": arguments.rounds}
        append_row("portable", {**row, "engines": figures})


def measure(model: str, rounds: int) -> dict[str, dict[str, float]]:
    """Return both engines' figures, ontrain's first: ratios refer to it."""
    return step.measure(model, 4, ["portable", "incumbent"], rounds, worker=_Worker)


if __name__ == "__main__":
    main()
