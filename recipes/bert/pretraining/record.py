"""What a run keeps and says: its place, its speed, the log, checkpoints, and the files of a finished phase."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import onnx_ir as ir
from dataset import Micro, PretrainingData
from harness.checkpoints import existing, prune
from harness.files import DataError
from harness.journal import Journal, Row, read_rows
from harness.meter import Meter
from harness.processes import Team
from harness.provenance import command_line, versions
from harness.terminal import speaker
from torch import Tensor, nn
from transformers import BertConfig

from ontrain.errors import CheckpointError
from ontrain.session.report import write_report
from pretraining.flags import Options
from pretraining.start import PREFIX
from pretraining.weights import save_onnx


@dataclass(frozen=True)
class Outcome:
    """What an update says: means over the micro-batches, the gradient's norm before clipping, the loss scale used.

    `losses` is float32 [3]: whole loss, masked words, next sentence. A gradient that is not `finite`, as one that
    overflowed in float16, makes no update.
    """

    losses: Tensor
    grad_norm: Tensor
    finite: bool
    loss_scale: float


@dataclass
class Run:
    """What a training loop works with."""

    options: Options
    team: Team
    engine: Any
    data: PretrainingData
    identity: dict[str, Any]
    step: int = 0
    """Updates of this phase that are done, skipped ones included."""
    meter: Meter = field(default_factory=Meter)
    sample: Micro | None = None
    """A micro-batch as the engine gets it."""

    def __post_init__(self) -> None:
        options, first = self.options, self.team.first
        self.console = speaker(quiet=not first)
        self.say = self.console.print
        self.began, self.position, self.saved = time.perf_counter(), self.data.position, self.step or -1
        self.journal = Journal(
            options.log_file, self._stays, events=options.output_dir, purge_step=options.offset + self.step + 1,
            writes=first,
        )  # fmt: skip

    @property
    def finished(self) -> bool:
        """Whether --max_steps or --num_train_epochs is reached."""
        epochs = self.options.num_train_epochs
        done = self.position["epoch"] + self.position["round"] / self.data.rounds
        return self.step >= self.options.steps or (epochs is not None and done >= epochs)

    def introduce(self, model: nn.Module, note: str) -> None:
        """Log what holds for the whole run, and say what is trained from where."""
        options = self.options
        for name, value in {
            "Config": options.plain(), "SEED": options.seed, "batch_size_per_gpu": options.micro_batch,
            "learning_rate": options.learning_rate, "processes": self.team.size, "train_start": True,
        }.items():  # fmt: skip
            self.log("PARAMETER", {name: value})
        self.say(
            f"{options.engine} on {self.team.device}, {self.team.size} processes; "
            f"{sum(p.numel() for p in model.parameters()):,} parameters; "
            f"{len(self.data.files)} files of sequences of {options.max_seq_length}"
        )
        if note:
            self.say(note)

    @contextmanager
    def saying_what_stays(self) -> Iterator[None]:
        """Name the newest checkpoint where something stops the run that can be mended."""
        try:
            yield
        except (DataError, CheckpointError, OSError):
            if there := list(existing(self.options.output_dir, PREFIX).values()):
                self.say(f"{there[-1].name} stays; what stops the run mended, --resume_from_checkpoint goes on from it")
            raise

    def log(self, step: Any, data: Mapping[str, Any]) -> None:
        """Write a row as upstream's DLLogger does; step is [epoch, step], "PARAMETER", or [] for the last."""
        now = datetime.now()
        self.journal.add({
            "timestamp": str(now.timestamp()), "datetime": str(now),
            "elapsedtime": str(time.perf_counter() - self.began), "type": "LOG", "step": step,
            "data": data if step == "PARAMETER" else {"phase": self.options.phase, **data},
        })  # fmt: skip

    def log_step(self, data: Mapping[str, Any]) -> None:
        """Write a row of the present step, its numbers as curves."""
        self.log([self.position["epoch"], self.step], data)
        self.journal.curves(self.options.offset + self.step, data)

    def _stays(self, row: Row) -> bool:
        """Rows of this phase behind its step, and of a later phase, are written anew."""
        at, phase = row.get("step"), row.get("data", {}).get("phase", 0)
        if not isinstance(at, list) or phase < self.options.phase:
            return True
        return phase == self.options.phase and not (len(at) == 2 and at[1] > self.step)


def report(run: Run, average: Tensor, outcome: Outcome, rate: float, skipped: int) -> None:
    """Write a row of the log: means since the one before, and of the last update, over all processes."""
    last, *mean = (n / run.team.size for n in run.team.total([float(outcome.losses[0]), *average.tolist()]))
    row: dict[str, Any] = {
        "average_loss": mean[0], "step_loss": last, "learning_rate": rate,
        "masked_lm_loss": mean[1], "next_sentence_loss": mean[2], "grad_norm": float(outcome.grad_norm),
    }  # fmt: skip
    if run.options.fp16:
        row |= {"loss_scale": outcome.loss_scale, "skipped_steps": skipped}
    said = ""
    if (speed := run.meter.read()) is not None:
        row |= {"sequences_per_second": speed[0], "tokens_per_second": speed[1]}
        said = f" | {speed[0]:,.1f} seq/s, {speed[1]:,.0f} tokens/s"
    run.log_step(row)
    run.say(
        f"step {run.step:5d}/{run.options.steps} | loss {mean[0]:7.4f} = masked words {mean[1]:7.4f} + next sentence "
        f"{mean[2]:6.4f} | lr {rate:.3e}{said}"
    )


def checkpoint(run: Run) -> None:
    """Write a checkpoint unless there is one of this step; of the older ones --keep_checkpoints stay."""
    options = run.options
    if options.skip_checkpoint or run.step in (0, run.saved):
        return
    user = {
        "identity": run.identity, "phase": options.phase, "step": run.step, "position": run.position,
        "micro_batch": options.micro_batch,
    }  # fmt: skip
    number = run.step + options.offset
    path = options.output_dir / f"{PREFIX}{number}"
    with run.meter.paused():
        run.engine.trainer.save_checkpoint(path, user_dict=user)
        if run.team.first:
            prune(options.output_dir, PREFIX, options.keep_checkpoints, path)
    run.saved = run.step
    run.log_step({"checkpoint_step": number})
    run.say(f"checkpoint {path}")


def finish(run: Run, config: BertConfig, began: float, now: float) -> None:
    """Write the ONNX file, the log's last row and report.html; every process calls this, the first one writes.

    The program began, and the training ended `now`, by one clock. `config` has the vocabulary's true size.
    """
    options, meter, speed = run.options, run.meter, run.meter.overall()
    rows = read_rows(options.log_file)
    final: Row = next((row["data"] for row in reversed(rows) if "step_loss" in row.get("data", {})), {})
    summary = {
        "e2e_train_time": now - began, "raw_train_time": meter.train_seconds, "first_step_time": meter.first_seconds,
        "training_sequences_per_second": speed[0] if speed else None,
        "training_tokens_per_second": speed[1] if speed else None,
        "training_sequences": meter.sequences, "training_tokens": meter.tokens, "final_loss": final.get("step_loss"),
    }  # fmt: skip
    trainer, feeds = run.engine.trainer, run.engine.feeds(run.sample)
    trainer.prepare(*feeds)  # a state that was loaded is taken over with the first batch
    state = trainer.state_dict(pytorch_format=True)
    if not run.team.first:
        return
    path = options.output_dir / ("final_bert.onnx" if options.phase2 else "phase1_bert.onnx")
    save_onnx(state, config, path)
    run.log([], summary)
    run.say(f"model {path}")
    if speed:
        run.say(
            f"{speed[0]:,.1f} sequences and {speed[1]:,.0f} real tokens a second over {run.team.size} "
            f"processes, without the first step's {meter.first_seconds:.1f} s"
        )
    graph = trainer.step_model() if meter.updates else None
    # A profile is a step, in which the other processes would have to take part.
    operators = trainer.profile(*feeds) if run.team.world is None and meter.updates else []
    write_report(
        options.output_dir / "report.html", title=f"BERT pre-training, phase {options.phase}",
        metrics=_curves(options), operators=operators, peak_memory=trainer.peak_memory(),
        graph=graph if graph is not None else ir.load(path),
        facts={
            "final loss": f"{final['average_loss']:.4f} = masked words {final['masked_lm_loss']:.4f} + next sentence "
            f"{final['next_sentence_loss']:.4f}"
            if final
            else "not in the log",
            "speed": f"{speed[0]:,.1f} sequences, {speed[1]:,.0f} real tokens a second" if speed else "not measured",
            "first step": f"{meter.first_seconds:.1f} s, capture and plan included",
            "model": f"{config.num_hidden_layers} layers, {config.hidden_size} wide, "
            f"{config.num_attention_heads} heads, vocabulary of {config.vocab_size:,}; "
            f"{sum(p.numel() for p in state.values()):,} parameters",
            "batch": f"{options.train_batch_size} sequences of {options.max_seq_length} tokens in "
            f"{options.gradient_accumulation_steps} parts, {run.team.size} processes",
            "run": f"{options.engine}, {run.step} steps, LAMB {options.learning_rate:g}, warmup "
            f"{options.warmup_proportion:g}, {options.schedule}, seed {options.seed}",
            "command": command_line(),
            "versions": ", ".join(f"{name} {number}" for name, number in versions("transformers").items()),
        },
    )  # fmt: skip
    run.say(f"report {options.output_dir / 'report.html'}")


def _curves(options: Options) -> list[Row]:
    """The whole loss of both phases."""
    curves = []
    for row in read_rows(options.log_file):
        at, data = row.get("step"), row.get("data", {})
        if isinstance(at, list) and len(at) == 2 and "average_loss" in data:
            step = at[1] + (options.phase1_end_step if data.get("phase") == 2 else 0)
            curves.append({"step": step, "split": "train", "loss": data["average_loss"], "lr": data["learning_rate"]})
            if sequences := data.get("sequences_per_second"):
                curves[-1]["ms"] = 1000 * options.train_batch_size / sequences
    return curves
