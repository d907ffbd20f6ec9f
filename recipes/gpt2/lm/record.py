"""What a run of run_lm.py keeps: its folder, its checkpoints, its log, the finished model and results.json."""

from __future__ import annotations

import dataclasses
import json
import shutil
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from harness.checkpoints import existing, newest, prune
from harness.files import writable
from harness.journal import Journal
from harness.processes import Team
from harness.provenance import command_line, versions
from transformers import GPT2LMHeadModel

from lm.arguments import LATEST, Arguments
from lm.text import Batches, Vocabulary
from ontrain.errors import CheckpointError, OptionError
from ontrain.optim import StepKind
from ontrain.training.environment import collect_environment

PREFIX = "checkpoint-"


@dataclass
class Run:
    """One run of the script; `facts` become results.json."""

    arguments: Arguments
    command: Sequence[str]
    team: Team
    vocabulary: Vocabulary
    model: GPT2LMHeadModel
    size: int
    """Tokens of a block."""
    facts: dict[str, Any] = field(default_factory=dict)
    code: int = 0

    def __post_init__(self) -> None:
        self.started, self.output = time.perf_counter(), Path(self.arguments.output_dir)
        parameters = sum(p.numel() for p in self.model.parameters())
        self.facts |= {"parameters": parameters, "vocabulary": self.vocabulary.size, "tokens a block": self.size}
        self.say(
            f"model: {parameters:,} parameters, {self.vocabulary.size:,} tokens; "
            f"blocks of {self.size:,}; {self.arguments.engine} on {self.team.device}"
        )

    def say(self, text: str) -> None:
        """Print a line, in one of the processes."""
        if self.team.first:
            print(text, flush=True)

    def claim_output(self) -> None:
        """Refuse a folder that cannot be written, or that a new run would mix with another's."""
        arguments = self.arguments
        writable(self.output)
        begins = arguments.do_train and not arguments.resume_from_checkpoint and self.team.first
        occupied = any(not path.name.startswith(".probe-") for path in self.output.iterdir())
        if begins and occupied and not arguments.overwrite_output_dir:
            raise OptionError(
                f"--output_dir {self.output} is not empty",
                way_out="name another folder, or give --overwrite_output_dir or --resume_from_checkpoint",
            )

    def clear_output(self) -> None:
        """Remove what an older run left, so that it is not taken for this one's."""
        for folder in existing(self.output, PREFIX).values():
            shutil.rmtree(folder)
        names = ("metrics.jsonl", "model.onnx", "model.onnx.data", "results.json", "eval_results_lm.txt")
        for old in (*self.output.glob("events.out.*"), *(self.output / name for name in names)):
            old.unlink(missing_ok=True)

    def begin(self, trainer: Any, data: Batches) -> int:
        """Begin anew, or go on from a checkpoint; open the log behind the updates that are done, and return them."""
        arguments, step = self.arguments, 0
        optimizer = ("learning_rate", "weight_decay", "adam_epsilon", "max_grad_norm", "warmup_steps", "fp16")
        # What decides the updates: written with a checkpoint, and compared when a run goes on.
        self.setting = {name: getattr(arguments, name) for name in ("engine", "seed", *optimizer)} | {
            "blocks": len(data.rows), "tokens a block": self.size, "rows an update": data.rows_an_update,
            "updates": data.total, "vocabulary": self.vocabulary.digest,
        }  # fmt: skip
        if arguments.resume_from_checkpoint:
            step = self._resume(trainer, arguments.resume_from_checkpoint)
            self.say(f"resumed after update {step:,}")
        elif self.team.first:
            self.clear_output()
        self.saved = step
        self.say(f"{data.total:,} updates of {data.tokens_an_update:,} tokens, {data.updates_an_epoch:,} an epoch")
        self.open_journal(step)
        return step

    def _resume(self, trainer: Any, wanted: str) -> int:
        """Take over a checkpoint; of the newest ones those that are damaged are passed over."""
        paths = [*existing(self.output, PREFIX).values()][::-1] if wanted == LATEST else [Path(wanted)]
        if not paths:
            way_out = "leave the option out to begin"
            raise CheckpointError(f"{self.output} holds no checkpoint to resume from", way_out=way_out)
        path, about = newest(
            paths, trainer.load_checkpoint, lambda _, error: print(f"warning: passed over: {error}", file=sys.stderr)
        )
        before = about.get("setting", {})
        differing = [
            f"{key} {before.get(key)!r}, now {value!r}"
            for key, value in self.setting.items()
            if before.get(key) != value
        ]
        if differing:
            raise CheckpointError(
                f"{path} is of another run: {'; '.join(differing)}",
                way_out="give the options that it was begun with, or begin anew with its weights: "
                "--model_name_or_path with the folder of a finished run",
            )
        return int(about["step"])

    def save(self, trainer: Any, step: int) -> None:
        """Write the checkpoint of an update, unless there is one; the newest --save_total_limit stay."""
        if self.saved == step:
            return
        path = self.output / f"{PREFIX}{step}"
        trainer.save_checkpoint(path, {"step": step, "setting": self.setting})
        if self.arguments.save_total_limit and self.team.first:
            prune(self.output, PREFIX, self.arguments.save_total_limit, path)
        self.saved = step

    def open_journal(self, step: int = sys.maxsize) -> None:
        """Go on behind the rows of `step` updates."""
        self.journal = Journal(
            self.output / "metrics.jsonl", lambda row: row["step"] <= step, events=self.output,
            purge_step=step + 1 if 0 < step < sys.maxsize else None, writes=self.team.first,
        )  # fmt: skip

    def log(self, step: int, split: str, **values: Any) -> None:
        """Write a row, its numbers as curves and its texts as texts."""
        self.journal.add({"step": step, "split": split, **values})
        self.journal.curves(step, values, split)

    def say_how_to_go_on(self, step: int) -> None:
        """Print the command that goes on with an interrupted run."""
        command = [word for word in self.command if word != "--overwrite_output_dir"]
        again = command_line(command, resume="--resume_from_checkpoint")
        self.say(f"interrupted after update {step:,}; go on with\n  {again}")

    def finish_training(self, data: Batches, step: int) -> None:
        """Write what --model_name_or_path reads, and remember the speed."""
        if self.team.first:
            self.model.save_pretrained(self.output)
            for source, name in zip(self.vocabulary.files, ("vocab.json", "merges.txt"), strict=True):
                if source.resolve() != (self.output / name).resolve():
                    shutil.copyfile(source, self.output / name)
        if medians := [row["seconds"] for row in self.journal.rows() if row["split"] == "train"]:
            # The median of the intervals' medians, because the first update captures and plans.
            median = statistics.median(medians)
            self.facts |= {"updates": step, "seconds an update": round(median, 4)}
            self.facts["tokens a second"] = round(data.tokens_an_update / median)

    def write_results(self) -> None:
        """Write results.json, and eval_results_lm.txt where there was an evaluation."""
        self.journal.close()
        if not self.team.first:
            return
        self.facts["seconds"] = round(time.perf_counter() - self.started, 1)
        if "evaluation" in self.facts:
            said = f"perplexity = {self.facts['evaluation']['perplexity']}\n"
            (self.output / "eval_results_lm.txt").write_text(said)
        results = {
            "command": command_line(self.command),
            "options": dataclasses.asdict(self.arguments),
            **self.facts,
            "versions": versions("onnxruntime", "transformers", "tokenizers"),
            "machine": {
                "processor": collect_environment().system["processor"],
                "threads": torch.get_num_threads(),
                "device": str(self.team.device),
                "processes": self.team.size,
            },
        }
        (self.output / "results.json").write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n")

    def plan_text(self, trainer: Any) -> str:
        """Say what memory a step takes; the model is captured, and nothing is run."""
        rows = self.arguments.per_gpu_train_batch_size
        ids = torch.zeros((rows, self.size), dtype=torch.int64, device=self.team.device)
        session, seconds = trainer.prepare(ids, ids)
        start = time.perf_counter()
        kind = StepKind.UPDATE if self.arguments.gradient_accumulation_steps == 1 else StepKind.ACCUMULATE_UPDATE
        session.plan(kind, {"input_ids": ids, "labels": ids})
        planned, peak = time.perf_counter() - start, trainer.peak_memory()
        return (
            f"a step of {rows} x {self.size:,} tokens: {peak['state'] / 1e9:.2f} GB of weights, gradients and moments, "
            f"{peak['working memory'] / 1e9:.2f} GB of working memory; captured in {sum(seconds.values()):.1f} s, "
            f"planned in {planned:.1f} s"
        )
