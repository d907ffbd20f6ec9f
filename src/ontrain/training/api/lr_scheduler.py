"""`LinearLRScheduler`: the learning rate up and down again."""

from __future__ import annotations

from ontrain.arguments import checked_kind, checked_number, checked_whole
from ontrain.errors import OptionError
from ontrain.training.api.optimizer import Optimizer

__all__ = ["LinearLRScheduler"]


class LinearLRScheduler:
    """Raises the learning rate from 0 to `initial_lr` in the warm-up steps, then lowers it to 0 at the last step.

    After n updates the next one has the rate initial_lr · n / warmup for n < warmup, else
    initial_lr · (total − n) / (total − warmup), never below 0 (onnxruntime.training.api's LinearLRScheduler).

    Args:
        optimizer: whose learning rate to set, from now on.
        warmup_step_count: updates of the warm-up, may be 0.
        total_step_count: updates in all.
        initial_lr: the highest learning rate.

    Raises:
        OptionError: a count or the rate is out of range, or the warm-up is longer than the whole.
    """

    def __init__(self, optimizer: Optimizer, warmup_step_count: int, total_step_count: int, initial_lr: float) -> None:
        checked_kind("the optimizer", optimizer, Optimizer, "give an ontrain.training.api.Optimizer")
        checked_whole("warmup_step_count", warmup_step_count, 0)
        checked_whole("total_step_count", total_step_count, 1)
        if warmup_step_count > total_step_count:
            raise OptionError(
                f"a warm-up of {warmup_step_count} of {total_step_count} steps", way_out="warm up for 0 up to all steps"
            )
        self._optimizer, self._warmup, self._total = optimizer, warmup_step_count, total_step_count
        self._initial = checked_number("initial_lr", initial_lr, "a number from 0", at_least=0)
        self.step()

    def step(self) -> None:
        """Set the learning rate of the optimizer's next update; call it after each update."""
        done = self._optimizer.updates
        if done < self._warmup:
            share = done / self._warmup
        else:
            share = max(0.0, (self._total - done) / max(self._total - self._warmup, 1))
        self._optimizer.set_learning_rate(self._initial * share)
