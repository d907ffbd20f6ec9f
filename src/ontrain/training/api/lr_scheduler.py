"""`LinearLRScheduler`: the learning rate up and down again."""

from __future__ import annotations

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
        OptionError: the counts are negative, or the warm-up is longer than the whole.
    """

    def __init__(self, optimizer: Optimizer, warmup_step_count: int, total_step_count: int, initial_lr: float) -> None:
        if not 0 <= warmup_step_count <= total_step_count or total_step_count < 1:
            raise OptionError(
                f"a warm-up of {warmup_step_count} of {total_step_count} steps", way_out="warm up for 0 up to all steps"
            )
        self._optimizer, self._warmup, self._total = optimizer, warmup_step_count, total_step_count
        self._initial = initial_lr
        self.step()

    def step(self) -> None:
        """Set the learning rate of the optimizer's next update; call it after each update."""
        done = self._optimizer.updates
        if done < self._warmup:
            share = done / self._warmup
        else:
            share = max(0.0, (self._total - done) / max(self._total - self._warmup, 1))
        self._optimizer.set_learning_rate(self._initial * share)
