"""Memory of a training step, predicted and measured, and what its steady state asks of the allocator.

    python -m benchmarks.memory [--model bert] [--layers 4] [--engine ontrain --engine eager]

Each engine runs in a fresh process. After warming up:

- `peak` is the largest resident size during three steps less the size once model, optimizer and plans are dropped:
  parameters, gradients, moments and working memory. `beyond` is what of it is none of the first three.
- "ontrain-aten" takes eager PyTorch's matrix products.
- "ontrain-budget" may take 0.55 of its working memory; it computes activations again.
- `predicted` is what the plan says before it has run: `ORTTrainer.peak_memory`, and its error against `peak`.
- `faults` are minor page faults of a step; `calls` are the times that a step asks torch's allocator for memory, and
  `MiB` how much of it, by torch's profiler; `calls by` names those who ask most.

Linux only: peaks are read from /proc. Rows go to benchmarks/results/memory.jsonl.
"""

from __future__ import annotations

import argparse
import ctypes
import functools
import gc
import os
import re
import resource
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.commands import Command
from benchmarks.fresh import in_fresh_process, report
from benchmarks.rows import append_row

_ENGINES = ("ontrain", "ontrain-aten", "ontrain-budget", "ortmodule", "eager")
_WARM_UP, _STEPS = 4, 3
_STATE = 4
"""Copies of the parameters' size that training keeps: parameters, gradients, and two moments."""


def measure_here(engine: str, name: str, layers: int) -> dict[str, float]:
    """Measure in this process."""
    import torch

    from benchmarks.models import make
    from benchmarks.worker import BUDGET, make_step, make_trainer

    torch.set_num_threads(int(os.environ.get("BENCH_THREADS", os.cpu_count() or 1)))
    model, batches = make(name, layers)
    batch = batches[0]
    figures = {"state": float(_STATE * sum(p.nbytes for p in model.parameters()))}
    budgets = {"ontrain": None, "ontrain-aten": None, "ontrain-budget": BUDGET}
    if engine == "ontrain-aten":
        os.environ["ONTRAIN_TUNE"] = "0"
    trainer = make_trainer(model, batches, budgets[engine]) if engine in budgets else None
    train = trainer.train_step if trainer is not None else make_step(engine, model, batches)
    step = functools.partial(train, **batch) if trainer is not None else functools.partial(train, batch)
    del model
    for _ in range(_WARM_UP):
        step()
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # the high-water mark begins anew
    faults = []
    for _ in range(_STEPS):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        step()
        faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
    peak = _status("VmHWM")
    if trainer is not None:
        figures["predicted"] = float(sum(trainer.peak_memory().values()))
    calls = _allocator_calls(step)
    del step, train, trainer
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    figures |= {"peak": float(peak - _status("VmRSS")), "faults": float(sorted(faults)[_STEPS // 2])}
    return {**figures, **calls}


def _status(field: str) -> int:
    match = re.search(rf"{field}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert match is not None, f"no {field} in /proc/self/status"
    return int(match[1]) * 1024


def _allocator_calls(step: Callable[[], Any]) -> dict[str, float]:
    """How often a step asks torch's allocator for memory, for how many bytes, and the operators that ask."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        step()
    events: list[Any] = list(profiler.profiler.kineto_results.events())  # type: ignore[union-attr]
    asked = [e for e in events if e.name() == "[memory]" and e.nbytes() > 0]
    operators = [(e.start_ns(), e.start_ns() + e.duration_ns(), e.name()) for e in events if e.name() != "[memory]"]
    who: Counter[str] = Counter()
    for event in asked:
        around = [(end - start, name) for start, end, name in operators if start <= event.start_ns() <= end]
        who[max(around)[1] if around else "Python"] += 1
    return {
        "calls": float(len(asked)),
        "asked_bytes": float(sum(e.nbytes() for e in asked)),
        **{f"by {name}": float(count) for name, count in who.most_common(4)},
    }


def main() -> None:
    """Print the table and append a row per model."""
    parser = Command(__doc__)
    parser.add_argument(
        "--model", action="append", choices=("bert", "bert-dense", "gpt2"), help="by default bert and gpt2"
    )
    parser.add_argument("--engine", action="append", choices=_ENGINES, help="may be repeated; by default all")
    parser.add_argument("--layers", type=int, default=4, help="of the model")
    parser.add_argument("--no-row", action="store_true", help="print only")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        report(measure_here(*arguments.one, arguments.layers))
        return
    for model in arguments.model or ("bert", "gpt2"):
        print(f"\n{model}, {arguments.layers} layers, MiB")
        print(f"{'engine':<15}{'state':>7}{'peak':>7}{'beyond':>8}{'predicted':>11}{'error':>8}{'faults':>8}"
              f"{'calls':>7}{'MiB':>6}  calls by")  # fmt: skip
        figures = {}
        for engine in arguments.engine or _ENGINES:
            f = figures[engine] = in_fresh_process(
                "benchmarks.memory", "--layers", str(arguments.layers), "--one", engine, model
            )
            mib = {key: value / 2**20 for key, value in f.items()}
            said = f"{mib['predicted']:>11.0f}{f['predicted'] / f['peak'] - 1:>+8.1%}" if "predicted" in f else " " * 19
            print(
                f"{engine:<15}{mib['state']:>7.0f}{mib['peak']:>7.0f}{mib['peak'] - mib['state']:>8.0f}{said}"
                f"{f['faults']:>8.0f}{f['calls']:>7.0f}{mib['asked_bytes']:>6.0f}  "
                + ", ".join(f"{k[3:]} {v:.0f}" for k, v in f.items() if k.startswith("by "))
            )
        if not arguments.no_row:
            row = {"benchmark": "memory", "model": model, "layers": arguments.layers}
            append_row("memory", {**row, "engines": figures})


if __name__ == "__main__":
    main()
