"""Steps of many models: ORTModule and ORTTrainer against eager PyTorch, its channels_last order and torch.compile.

    python -m benchmarks.zoo [--models ResNet,LSTM] [--rounds 9] [--compile] [--list]

Every model trains in a process of its own: forward, backward and a fused AdamW, in float32. The engines take turns,
step by step; each step's time is taken, and the medians are compared. `first` is the first step of ORTModule, capture
and plan included, with an empty file of products. `peak` is the resident memory of a process that makes ten steps
with the engine alone, ours to eager's. torch.compile takes a minute a model, so it takes part only with --compile.
ORTTrainer is left out where a model is no single graph. What a model needs beside torch and transformers (timm,
diffusers) is said where it is missing. Rows go to benchmarks/results/zoo.jsonl.
"""

from __future__ import annotations

import argparse
import copy
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable

from benchmarks.commands import Command
from benchmarks.fresh import in_fresh_process, report
from benchmarks.rows import append_row
from ontrain.errors import OntrainError

__all__: list[str] = []

Step = Callable[[], float]


def _engines(name: str, chosen: list[str]) -> dict[str, Step]:
    """One training step of each engine on the model's batch."""
    import torch

    from benchmarks.zoo_models import make
    from ontrain.training import ORTTrainer, optim
    from ontrain.training.ortmodule import ORTModule

    sample = make(name)
    last = torch.channels_last

    def stepping(module: torch.nn.Module, called: Callable[..., torch.Tensor], batch: tuple[torch.Tensor, ...]) -> Step:
        optimizer = torch.optim.AdamW(module.parameters(), lr=1e-4, fused=True)

        def step() -> float:
            optimizer.zero_grad()
            loss = called(*batch)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            return float(loss.detach())

        return step

    def engine(kind: str) -> Step:
        module, batch = copy.deepcopy(sample.module), sample.batch
        if "channels_last" in kind:
            module = module.to(memory_format=last)  # type: ignore[call-overload]
            batch = tuple(t.to(memory_format=last) if t.dim() == 4 and t.is_floating_point() else t for t in batch)
        if "compile" in kind:
            return stepping(module, torch.compile(module), batch)
        if kind == "ORTModule":
            return stepping(module, ORTModule(module), batch)
        if kind == "ORTTrainer":
            names = [(f"batch_{i}", list(t.shape)) for i, t in enumerate(batch)]
            trainer = ORTTrainer(module, {"inputs": names, "outputs": [("loss", [], True)]}, optim.AdamConfig(lr=1e-4))
            return lambda: float(trainer.train_step(*batch))
        return stepping(module, module, batch)

    kinds = [kind for kind in chosen if sample.images or "channels_last" not in kind]
    return {kind: engine(kind) for kind in kinds}


def measure_here(name: str, kinds: list[str], rounds: int) -> dict[str, float]:
    """Measure one model in this process: the median of each engine's steps, and ORTModule's first."""
    engines = _engines(name, kinds)
    figures: dict[str, float] = {}
    for kind, step in [*engines.items()]:
        started = time.perf_counter()
        try:
            step()
        except OntrainError:
            if kind != "ORTTrainer":
                raise
            del engines[kind]  # the model is no single graph
        if kind == "ORTModule":
            figures["first"] = time.perf_counter() - started
    for _ in range(2):
        for step in engines.values():
            step()
    spent: dict[str, list[float]] = {kind: [] for kind in engines}
    began = time.perf_counter()
    while len(spent["eager"]) < rounds or (time.perf_counter() - began < 1.0 and len(spent["eager"]) < 300):
        for kind, step in engines.items():
            started = time.perf_counter()
            step()
            spent[kind].append(time.perf_counter() - started)
    figures |= {kind: statistics.median(times) for kind, times in spent.items()}
    return figures


def peak(name: str, kind: str) -> dict[str, float]:
    """Resident memory at its highest, in MiB, of this process after ten steps."""
    (step,) = _engines(name, [kind]).values()
    for _ in range(10):
        step()
    return {"mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}


def main() -> None:
    """Measure the chosen models, print a line each, append a row each."""
    parser = Command(__doc__)
    parser.add_argument("--models", help="parts of models' names, by commas; by default all")
    parser.add_argument("--rounds", type=int, default=9, help="steps of each engine")
    parser.add_argument("--compile", action="store_true", help="torch.compile takes part, too")
    parser.add_argument("--list", action="store_true", help="print the models' names and end")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--peak", help=argparse.SUPPRESS)
    options = parser.parse_args()
    kinds = ["eager", "channels_last", *(["compile", "compile channels_last"] if options.compile else [])]
    kinds += ["ORTModule", "ORTTrainer"]
    if options.one:
        report(
            measure_here(options.one, kinds, options.rounds) if not options.peak else peak(options.one, options.peak)
        )
        return
    from benchmarks.zoo_models import MODELS

    wanted = [part.lower() for part in (options.models or "").split(",")]
    names = [name for name in MODELS if any(part in name.lower() for part in wanted)]
    if options.list or not names:
        sys.exit("\n".join(MODELS) if options.list else f"no model's name has {options.models!r} in it")
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            os.environ["ONTRAIN_CACHE_DIR"] = folder
            arguments = ["--one", name, "--rounds", str(options.rounds), *(["--compile"] if options.compile else [])]
            try:
                figures = in_fresh_process("benchmarks.zoo", *arguments)
                memory = {
                    kind: in_fresh_process("benchmarks.zoo", "--one", name, "--peak", kind)["mib"]
                    for kind in ("eager", "ORTModule")
                }
            except subprocess.CalledProcessError as error:
                lines = (error.stderr or "").strip().splitlines() or ["it ended without a word"]
                print(f"{name:34s} left out: {lines[-1]}", flush=True)
                continue
        best = min(time for kind, time in figures.items() if kind in kinds and not kind.startswith("ORT"))
        row = {"model": name, "seconds": figures, "peak_mib": memory}
        append_row("zoo", row)
        told = "  ".join(f"{kind} {figures['eager'] / figures[kind]:.2f}" for kind in kinds[1:] if kind in figures)
        print(
            f"{name:34s} eager {figures['eager'] * 1e3:.1f} ms  {told}  "
            f"of the best peer {best / figures['ORTModule']:.2f}  first {figures['first']:.1f} s  "
            f"peak {memory['ORTModule'] / memory['eager']:.2f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
