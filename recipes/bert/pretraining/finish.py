"""What a finished phase leaves beside its checkpoints: the ONNX file, the last row of the log, report.html."""

from __future__ import annotations

import platform
import shlex
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import onnx_ir as ir
import torch
from transformers import BertConfig

from ontrain.session.report import write_report
from pretraining.export import save_onnx
from pretraining.journal import read_rows
from pretraining.loop import Run
from pretraining.options import Options

__all__ = ["finish", "onnx_path"]


def onnx_path(options: Options) -> Path:
    """Return where the phase's model goes."""
    return options.output_dir / ("final_bert.onnx" if options.phase2 else "phase1_bert.onnx")


def finish(run: Run, config: BertConfig, began: float, now: float) -> None:
    """Write everything; every process calls this, the first one writes.

    Args:
        run: after its last step, with a sample.
        config: of the model, with the vocabulary's true size.
        began: when the program began, by the clock of `now`.
        now: when the training ended.
    """
    assert run.sample is not None
    options, meter, journal = run.options, run.meter, run.journal
    speed = meter.overall()
    summary = {
        "e2e_train_time": now - began,
        "raw_train_time": meter.train_seconds,
        "first_step_time": meter.first_seconds,
        "training_sequences_per_second": speed[0] if speed else None,
        "training_tokens_per_second": speed[1] if speed else None,
        "training_sequences": meter.sequences,
        "training_tokens": meter.tokens,
        "final_loss": _last_row(options).get("step_loss"),
    }
    state = run.engine.weights(run.sample)
    if run.processes.rank:
        return
    path = onnx_path(options)
    save_onnx(state, config, path)
    journal.end(summary)
    journal.say(f"model {path}")
    if speed:
        journal.say(
            f"{speed[0]:,.1f} sequences and {speed[1]:,.0f} real tokens a second over {run.processes.world_size} "
            f"processes, without the first step's {meter.first_seconds:.1f} s"
        )
    _report(run, config, path, speed)
    journal.say(f"report {options.output_dir / 'report.html'}")


def _report(run: Run, config: BertConfig, model: Path, speed: tuple[float, float] | None) -> None:
    assert run.sample is not None
    options, meter, final = run.options, run.meter, _last_row(run.options)
    alone = run.processes.world_size == 1
    graph = run.engine.graph() if meter.updates else None
    parameters = sum(p.numel() for p in run.engine.weights(run.sample).values())
    write_report(
        options.output_dir / "report.html",
        title=f"BERT pre-training, phase {2 if options.phase2 else 1}",
        metrics=_metrics(options),
        # A profile is a step, in which the other processes would have to take part.
        operators=run.engine.profile(run.sample) if alone and meter.updates else [],
        peak_memory=run.engine.memory(),
        graph=graph if graph is not None else ir.load(model),
        facts={
            "final loss": f"{final['average_loss']:.4f} = masked words {final['masked_lm_loss']:.4f} + next sentence "
            f"{final['next_sentence_loss']:.4f}"
            if final
            else "not in the log",
            "speed": f"{speed[0]:,.1f} sequences, {speed[1]:,.0f} real tokens a second" if speed else "not measured",
            "first step": f"{meter.first_seconds:.1f} s, capture and plan included",
            "model": f"{config.num_hidden_layers} layers, {config.hidden_size} wide, "
            f"{config.num_attention_heads} heads, vocabulary of {config.vocab_size:,}; {parameters:,} parameters",
            "batch": f"{options.train_batch_size} sequences of {options.max_seq_length} tokens in "
            f"{options.gradient_accumulation_steps} parts, {run.processes.world_size} processes",
            "run": f"{options.engine}, {run.step} steps, LAMB {options.learning_rate:g}, warmup "
            f"{options.warmup_proportion:g}, {options.schedule}, seed {options.seed}",
            "command": shlex.join(["python", *sys.argv]),
            "versions": f"ontrain {version('ontrain')}, torch {torch.__version__}, transformers "
            f"{version('transformers')}, Python {platform.python_version()}",
        },
    )


def _last_row(options: Options) -> dict[str, Any]:
    """What the log says of its last update, which another process may have made."""
    rows = [row["data"] for row in read_rows(options.log_file) if "step_loss" in row.get("data", {})]
    return rows[-1] if rows else {}


def _metrics(options: Options) -> list[dict[str, float | str]]:
    """Curves of both phases: the whole loss as train, that of masked words beside it."""
    rows: list[dict[str, float | str]] = []
    for row in read_rows(options.log_file):
        at, data = row.get("step"), row.get("data", {})
        if isinstance(at, list) and len(at) == 2 and "average_loss" in data:
            step = at[1] + (options.phase1_end_step if data.get("phase") == 2 else 0)
            sequences = data.get("sequences_per_second")
            shown: dict[str, float | str] = {
                "step": step, "split": "train", "loss": data["average_loss"], "lr": data["learning_rate"],
            }  # fmt: skip
            if sequences:
                shown["ms"] = 1000 * options.train_batch_size / sequences
            rows.append(shown)
    return rows
