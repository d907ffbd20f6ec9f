"""The training loop: updates, the log, checkpoints, and what is left at the end."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from corpus.workspace import DataError
from dataset import IGNORED, Batch, PretrainingData
from terminal import progress, stopping

from ontrain.distributed import Processes, World
from ontrain.ort_supplement import SCHEDULES
from pretraining.checkpoints import path_of, save
from pretraining.engine import Engine, Micro, Outcome
from pretraining.journal import Journal
from pretraining.meter import Meter
from pretraining.options import Options
from pretraining.processes import total

__all__ = ["Run", "learning_rate", "train"]


@dataclass
class Run:
    """What a training loop works with."""

    options: Options
    processes: Processes
    world: World | None
    engine: Engine
    data: PretrainingData
    journal: Journal
    identity: dict[str, Any]
    step: int = 0
    """Updates of this phase that are done, skipped ones included."""
    meter: Meter = field(default_factory=Meter)
    sample: Micro | None = None
    """A micro-batch as the engine gets it."""
    saved: int = -1
    """The step of the newest checkpoint."""
    position: dict[str, int] = field(init=False)
    """In the data, behind the last update."""

    def __post_init__(self) -> None:
        self.position = self.data.position
        if self.step:
            self.saved = self.step

    @property
    def finished(self) -> bool:
        """Whether --max_steps or --num_train_epochs is reached."""
        epochs = self.options.num_train_epochs
        done = self.position["epoch"] + self.position["round"] / self.data.rounds
        return self.step >= self.options.steps or (epochs is not None and done >= epochs)


def learning_rate(options: Options, step: int) -> float:
    """Return the rate of the update after `step` others."""
    return options.learning_rate * SCHEDULES[options.schedule](step / options.steps, options.warmup_proportion)


def train(run: Run) -> bool:
    """Train to the end of the phase; return False if a signal ended it early, after a checkpoint.

    Raises:
        DataError: a data file is damaged; a checkpoint was written before.
        NonFiniteLossError: the loss or its gradient became NaN or infinite.
        CheckpointError: a checkpoint cannot be written.
    """
    options, meter = run.options, run.meter
    batches = iter(run.data)
    window, updates, skipped = torch.zeros(3, dtype=torch.float64), 0, 0
    shown, label = not options.disable_progress_bar, f"phase {2 if options.phase2 else 1}"
    with stopping() as asked, progress(run.journal.console, label, options.steps, shown=shown) as advance:
        while not run.finished and not _agreed(asked(), run.world):
            micros, sequences, tokens = _gather(batches, run)
            rate = learning_rate(options, run.step)
            outcome = run.engine.update(micros, rate)
            run.step, run.position, run.sample = run.step + 1, run.data.position, micros[0]
            window, updates = window + outcome.losses.cpu().double(), updates + 1
            skipped += not outcome.finite
            meter.add(sequences, tokens)
            if run.step % int(options.log_freq) == 0 or run.finished:
                _report(run, window / updates, outcome, rate, skipped)
                window, updates = torch.zeros(3, dtype=torch.float64), 0
            advance(run.step)
            if run.step % options.num_steps_per_checkpoint == 0:
                _checkpoint(run)
        _checkpoint(run)
    return run.finished


def _gather(batches: Iterator[Batch], run: Run) -> tuple[list[Micro], int, int]:
    """The micro-batches of an update with their shares of its labels, and its sequences and tokens in all processes."""
    found: list[Batch] = []
    failed: DataError | None = None
    try:
        found += (next(batches) for _ in range(run.options.gradient_accumulation_steps))
    except DataError as error:
        failed = error
    labels = [int((batch.masked_lm_labels != IGNORED).sum()) for batch in found]
    sequences = sum(len(batch.input_ids) for batch in found)
    tokens = sum(int(batch.input_mask.sum()) for batch in found)
    everywhere = total([sum(labels), sequences, tokens, len(found), failed is not None], run.world)
    if everywhere[4]:  # all processes end together, and what was trained is kept
        _checkpoint(run)
        raise failed or DataError("another process could not read its data")
    mean = max(everywhere[0] / everywhere[3], 1.0)
    micros = [Micro(batch, count / mean) for batch, count in zip(found, labels, strict=True)]
    return micros, int(everywhere[1]), int(everywhere[2])


def _report(run: Run, average: torch.Tensor, outcome: Outcome, rate: float, skipped: int) -> None:
    """Write a row of the log: means since the one before, and of the last update, over all processes."""
    count = run.processes.world_size
    last = total([float(outcome.losses[0])], run.world)[0] / count
    mean = [one / count for one in total(average.tolist(), run.world)]
    speed = run.meter.read()
    row: dict[str, Any] = {
        "average_loss": mean[0], "step_loss": last, "learning_rate": rate,
        "masked_lm_loss": mean[1], "next_sentence_loss": mean[2], "grad_norm": float(outcome.grad_norm),
    }  # fmt: skip
    if run.options.fp16:
        row |= {"loss_scale": outcome.loss_scale, "skipped_steps": skipped}
    said = ""
    if speed is not None:
        row |= {"sequences_per_second": speed[0], "tokens_per_second": speed[1]}
        said = f" | {speed[0]:,.1f} seq/s, {speed[1]:,.0f} tokens/s"
    run.journal.step(run.position["epoch"], run.step, row)
    run.journal.say(
        f"step {run.step:5d}/{run.options.steps} | loss {mean[0]:7.4f} = masked words {mean[1]:7.4f} + next sentence "
        f"{mean[2]:6.4f} | lr {rate:.3e}{said}"
    )


def _checkpoint(run: Run) -> None:
    """Write a checkpoint unless there is one of this step."""
    options = run.options
    if options.skip_checkpoint or run.step in (0, run.saved):
        return
    user = {
        "identity": run.identity, "phase": 2 if options.phase2 else 1, "step": run.step,
        "position": run.position, "micro_batch": options.micro_batch,
    }  # fmt: skip
    number = run.step + options.offset
    with run.meter.paused():
        save(run.engine, options.output_dir, number, user, options.keep_checkpoints, run.processes.rank)
    run.saved = run.step
    run.journal.step(run.position["epoch"], run.step, {"checkpoint_step": number})
    run.journal.say(f"checkpoint {path_of(options.output_dir, number)}")


def _agreed(stopped: bool, world: World | None) -> bool:
    """Whether any process was asked to stop: all stop at the same step."""
    return total([stopped], world)[0] > 0
