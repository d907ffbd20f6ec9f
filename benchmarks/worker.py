"""One engine in one process, driven line by line over its standard input: `step N` answers with N times.

Every engine gets the same model, batch, AdamW (lr 1e-4, weight decay 0.01, no clipping) and number of threads.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import tempfile
import time
from collections.abc import Callable

import torch

from benchmarks.models import make

ENGINES = ("ontrain", "eager", "eager-malloc", "compile")


def eager_step(model: torch.nn.Module, batch: dict[str, torch.Tensor], compiled: bool) -> Callable[[], float]:
    """PyTorch's own training loop at its strongest: fused AdamW, gradients set to None."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.01, fused=True)
    forward = torch.compile(model) if compiled else model

    def step() -> float:
        loss = forward(**batch).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return float(loss.detach())

    return step


def ontrain_step(model: torch.nn.Module, batch: dict[str, torch.Tensor], outputs: list[str]) -> Callable[[], float]:
    """The same step through ORTTrainer; batch and sequence may vary."""
    from ontrain.training import ORTTrainer, optim

    desc = {
        "inputs": [(name, ["batch", "sequence"]) for name in batch],
        "outputs": [(name, [], name == "loss") for name in outputs],
    }
    trainer = ORTTrainer(
        model, desc, optim.AdamConfig(lr=1e-4, lambda_coef=0.01), options={"utils": {"grad_norm_clip": False}}
    )

    def step() -> float:
        return float(trainer.train_step(**batch))

    return step


def main() -> None:
    """Serve steps until standard input ends."""
    engine, name, layers = sys.argv[1], sys.argv[2], int(sys.argv[3])
    torch.set_num_threads(int(os.environ.get("BENCH_THREADS", os.cpu_count() or 1)))
    model, batch, outputs = make(name, layers)
    if engine == "compile":
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = tempfile.mkdtemp()
    before = _peak()
    start = time.perf_counter()
    step = ontrain_step(model, batch, outputs) if engine == "ontrain" else eager_step(model, batch, engine == "compile")
    loss = step()
    _answer({"first": time.perf_counter() - start, "loss": loss, "before": before})
    for line in sys.stdin:
        count = int(line)
        times = []
        for _ in range(count):
            start = time.perf_counter()
            step()
            times.append(time.perf_counter() - start)
        _answer({"times": times, "peak": _peak()})


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _answer(message: dict[str, object]) -> None:
    print("@" + json.dumps(message), flush=True)


if __name__ == "__main__":
    main()
