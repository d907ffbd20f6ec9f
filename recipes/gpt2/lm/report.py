"""What a run says about itself: the plan of a step before it, results.json after it."""

from __future__ import annotations

import dataclasses
import json
import platform
import shlex
import time
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import nn

from lm.arguments import Arguments
from lm.engines import ort_trainer
from ontrain.distributed import Processes
from ontrain.errors import OptionError
from ontrain.optim import StepKind
from ontrain.training.environment import collect_environment

__all__ = ["plan_text", "write_results"]

_PACKAGES = ("ontrain", "torch", "onnxruntime", "transformers", "tokenizers")


def plan_text(arguments: Arguments, model: nn.Module, size: int, device: str) -> str:
    """Say what memory a step takes on blocks of `size` tokens; the model is captured, and nothing is run.

    Raises:
        OptionError: the engine has no plan.
    """
    if arguments.engine != "ontrain":
        raise OptionError("--plan_only plans memory", reason="eager PyTorch has no plan", way_out="plan for ontrain")
    shape = (arguments.per_gpu_train_batch_size, size)
    ids = torch.zeros(shape, dtype=torch.int64, device=device)
    trainer = ort_trainer(arguments, model, 1 + arguments.warmup_steps, device, Processes())
    session, seconds = trainer.prepare(ids, ids)
    start = time.perf_counter()
    kind = StepKind.UPDATE if arguments.gradient_accumulation_steps == 1 else StepKind.ACCUMULATE_UPDATE
    session.plan(kind, {"input_ids": ids, "labels": ids})
    planned, peak = time.perf_counter() - start, trainer.peak_memory()
    return (
        f"a step of {shape[0]} x {shape[1]:,} tokens: {peak['state'] / 1e9:.2f} GB of weights, gradients and moments, "
        f"{peak['working memory'] / 1e9:.2f} GB of working memory; captured in {sum(seconds.values()):.1f} s, "
        f"planned in {planned:.1f} s"
    )


def write_results(
    output: Path, command: Sequence[str], arguments: Arguments, facts: Mapping[str, Any], device: str,
    processes: Processes,
) -> None:  # fmt: skip
    """Write results.json, and eval_results_lm.txt where there was an evaluation."""
    if "evaluation" in facts:
        (output / "eval_results_lm.txt").write_text(f"perplexity = {facts['evaluation']['perplexity']}\n")
    results = {
        "command": shlex.join(["python", *command]),
        "options": dataclasses.asdict(arguments),
        **facts,
        "versions": {"python": platform.python_version(), **{name: version(name) for name in _PACKAGES}},
        "machine": {
            "processor": collect_environment().system["processor"],
            "threads": torch.get_num_threads(),
            "device": device,
            "processes": processes.world_size,
        },
    }
    (output / "results.json").write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n")
