"""The loop: updates, lines, evaluations and checkpoints, until the end or Ctrl-C."""

from __future__ import annotations

import signal
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from lm import checkpoints
from lm.arguments import Arguments
from lm.batching import Batches
from lm.engines import Schedule, Trainer
from lm.journal import Journal
from lm.processes import mean
from lm.scoring import perplexity
from ontrain.distributed import Processes

__all__ = ["Training"]


class Training:
    """One training run on an engine.

    Attributes:
        step: updates done.
        interrupted: whether Ctrl-C ended it.
        seconds: of every update made here.

    Args:
        arguments: the options.
        trainer: the engine, its model captured.
        data: the batches.
        journal: where rows go.
        output: folder of the checkpoints.
        setting: what decides the updates; written with a checkpoint, and compared when a run goes on.
        device: where batches are moved.
        processes: which of how many this is; the first writes lines and removes old checkpoints.
        step: updates that are done already.
    """

    def __init__(
        self, arguments: Arguments, trainer: Trainer, data: Batches, journal: Journal, output: Path,
        setting: dict[str, Any], device: str, processes: Processes, step: int = 0,
    ) -> None:  # fmt: skip
        self._arguments, self._trainer, self._data, self._journal = arguments, trainer, data, journal
        self._output, self._setting, self._device = output, setting, device
        self._processes, self._writes = processes, processes.rank == 0
        self._schedule = Schedule(arguments.learning_rate, arguments.warmup_steps, data.total)
        self.step, self.interrupted, self.seconds = step, False, list[float]()
        self._saved = step

    def run(self, evaluate: Callable[[int], None] | None) -> None:
        """Make the updates that are left; call `evaluate` with the number of updates done, between two of them."""
        arguments, total, begun = self._arguments, self._data.total, self.step
        losses: list[float] = []
        logged = len(self.seconds)
        with self._interruptible():
            while self.step < total and not (self.interrupted and self.step > begun):
                losses += self._update()
                last = self.step == total
                first = self.step == 1 and arguments.logging_first_step
                if self.step % arguments.logging_steps == 0 or last or first:
                    self._log(statistics.fmean(losses), statistics.median(self.seconds[logged:]))
                    losses, logged = [], len(self.seconds)
                interval = arguments.evaluation_interval
                if evaluate is not None and interval and self.step % interval == 0 and not last:
                    evaluate(self.step)
                if arguments.save_steps and (self.step % arguments.save_steps == 0 or last):
                    self._save()
            if self.interrupted and self.step < total:
                self._save()

    def _update(self) -> list[float]:
        start, losses = time.perf_counter(), []
        for ids in self._data.of_update(self.step):
            batch = ids.to(self._device)
            losses.append(float(self._trainer.train_step(batch, batch)))
        losses = [mean(statistics.fmean(losses), self._processes, self._device)]
        self.seconds.append(time.perf_counter() - start)
        self.step += 1
        return losses

    def _log(self, loss: float, seconds: float) -> None:
        data, rate = self._data, self._schedule(self.step - 1)
        epoch, speed = self.step / data.updates_an_epoch, data.tokens_an_update / seconds
        self._journal.add(self.step, "train", epoch=epoch, loss=loss, learning_rate=rate, seconds=seconds)
        if self._writes:
            print(
                f"| update {self.step:6,}/{data.total:6,} | epoch {epoch:6.2f} | lr {rate:.2e} | loss {loss:7.4f} "
                f"| ppl {perplexity(loss):9.2f} | {1000 * seconds:8.1f} ms | {speed:9,.0f} tokens/s |",
                flush=True,
            )

    def _save(self) -> None:
        if self._saved != self.step:
            limit = self._arguments.save_total_limit if self._writes else None
            checkpoints.save(self._trainer, self._output, self.step, self._setting, limit)
            self._saved = self.step

    @contextmanager
    def _interruptible(self) -> Iterator[None]:
        """End the run after the update that Ctrl-C or a scheduler's SIGTERM came in; a second stops at once."""

        def interrupt(number: int, frame: FrameType | None) -> None:
            self.interrupted = True
            signal.signal(number, before[number])

        before = {int(one): signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)}
        for one in before:
            signal.signal(one, interrupt)
        try:
            yield
        finally:
            for one, handler in before.items():
                signal.signal(one, handler)
