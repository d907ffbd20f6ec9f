"""Learning-rate schedules over optimization steps: a linear warmup from 0, then constant, cosine, linear or polynomial.

Names and arithmetic are those of onnxruntime.training.optim.lr_scheduler, which follow Hugging Face's schedules.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from ontrain.errors import CheckpointError, InputError, OptionError

__all__ = [
    "ConstantWarmupLRScheduler",
    "CosineWarmupLRScheduler",
    "LinearWarmupLRScheduler",
    "PolyWarmupLRScheduler",
    "TrainStepInfoLike",
    "WarmupLRScheduler",
]


class _HasLR(Protocol):
    lr: float


class TrainStepInfoLike(Protocol):
    """What a scheduler reads: the configured learning rate, and how many finite updates were made so far."""

    @property
    def optimizer_config(self) -> _HasLR:
        """The optimizer's configuration, whose `lr` the schedule starts from."""

    @property
    def optimization_step(self) -> int:
        """Updates made so far: 0 for the first."""


class _LRScheduler:
    """Base of schedulers; a subclass gives `get_lr`, and may keep state of its own."""

    def __init__(self) -> None:
        self._last_lr: list[float] = []

    def get_lr(self, train_step_info: Any) -> list[float]:
        """Return the learning rate for this step as a list of one: parameter groups have no rate of their own."""
        raise NotImplementedError(f"{type(self).__name__} must define get_lr(train_step_info)")

    def get_last_lr(self) -> list[float]:
        """Return what `get_lr` gave last, empty before the first step."""
        return self._last_lr

    def state_dict(self) -> dict[str, Any]:
        """Return the plain values among the attributes, for a checkpoint."""
        return {key: value for key, value in vars(self).items() if _is_plain(value)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what `state_dict` returned.

        Raises:
            CheckpointError: the state is that of a scheduler with other attributes.
        """
        unknown = sorted(set(state) - set(vars(self)))
        if unknown:
            raise CheckpointError(
                f"the state of the scheduler does not fit {type(self).__name__}", reason=f"it has no {unknown}"
            )
        vars(self).update(state)

    def _step(self, train_step_info: Any) -> list[float]:
        """Compute and remember the learning rate; called by the trainer once an optimization step."""
        self._last_lr = self.get_lr(train_step_info)
        return self._last_lr


class WarmupLRScheduler(_LRScheduler):
    """Linear warmup over `warmup · total_steps` steps, then `_decay`.

    Args:
        total_steps: optimization steps of the whole run, at least 1.
        warmup: share of them in [0, 1) during which the rate grows from 0 to `optimizer_config.lr`.

    Raises:
        OptionError: an argument is out of range.
    """

    def __init__(self, total_steps: int, warmup: float = 0.002) -> None:
        super().__init__()
        if isinstance(total_steps, bool) or not isinstance(total_steps, int) or total_steps < 1:
            raise OptionError(f"total_steps is {total_steps!r}", way_out="use a whole number from 1")
        _number("warmup", warmup, "a number in [0, 1)", below=1.0)
        self.total_steps, self.warmup = total_steps, warmup
        self._num_warmup_steps = warmup * total_steps

    @property
    def settings(self) -> dict[str, Any]:
        """What the schedule was made with."""
        return {name: value for name, value in vars(self).items() if not name.startswith("_")}

    def get_lr(self, train_step_info: TrainStepInfoLike) -> list[float]:
        """Return the learning rate for this step as a list of one."""
        base, step = train_step_info.optimizer_config.lr, train_step_info.optimization_step
        if step < self._num_warmup_steps:
            return [base * step / max(1.0, self._num_warmup_steps)]
        return [self._decay(base, step)]

    def _decay(self, base: float, step: int) -> float:
        """The learning rate `step` steps into training, after the warmup."""
        raise NotImplementedError

    def _progress(self, step: int) -> float:
        """The share of the steps after the warmup that are done; above 1 past the end."""
        return (step - self._num_warmup_steps) / max(1.0, self.total_steps - self._num_warmup_steps)


class ConstantWarmupLRScheduler(WarmupLRScheduler):
    """Warmup, then `optimizer_config.lr`."""

    def _decay(self, base: float, step: int) -> float:
        return base


class CosineWarmupLRScheduler(WarmupLRScheduler):
    """Warmup, then lr · max(0, ½ (1 + cos(2π · cycles · progress))); half a cycle decays to 0 at `total_steps`."""

    def __init__(self, total_steps: int, cycles: float = 0.5, warmup: float = 0.002) -> None:
        super().__init__(total_steps, warmup)
        _number("cycles", cycles, "a positive number", above=0.0)
        self.cycles = cycles

    def _decay(self, base: float, step: int) -> float:
        return base * max(0.0, 0.5 * (1.0 + math.cos(2.0 * math.pi * self.cycles * self._progress(step))))


class LinearWarmupLRScheduler(WarmupLRScheduler):
    """Warmup, then linearly to 0 at `total_steps`."""

    def _decay(self, base: float, step: int) -> float:
        return base * max(0.0, (self.total_steps - step) / max(1.0, self.total_steps - self._num_warmup_steps))


class PolyWarmupLRScheduler(WarmupLRScheduler):
    """Warmup, then (lr − lr_end) · (1 − progress)^power + lr_end, and `lr_end` past `total_steps`."""

    def __init__(self, total_steps: int, lr_end: float = 1e-7, power: float = 1.0, warmup: float = 0.002) -> None:
        super().__init__(total_steps, warmup)
        _number("lr_end", lr_end, "a number from 0")
        _number("power", power, "a number from 0")
        self.lr_end, self.power = lr_end, power

    def get_lr(self, train_step_info: TrainStepInfoLike) -> list[float]:
        """Return the rate as a list of one; OptionError unless `lr_end` is below `optimizer_config.lr`."""
        base = train_step_info.optimizer_config.lr
        if not base > self.lr_end:
            raise OptionError(f"lr_end {self.lr_end} is not below the learning rate {base}", way_out="lower lr_end")
        return super().get_lr(train_step_info)

    def _decay(self, base: float, step: int) -> float:
        if step > self.total_steps:
            return self.lr_end
        done = (step - self._num_warmup_steps) / (self.total_steps - self._num_warmup_steps)
        return float((base - self.lr_end) * (1.0 - done) ** self.power + self.lr_end)


@contextmanager
def taken_back_if_refused(scheduler: _LRScheduler | None) -> Iterator[None]:
    """Give a scheduler the attributes that it had before, if the batch that it was asked for is refused."""
    before = {} if scheduler is None else dict(vars(scheduler))
    try:
        yield
    except InputError:
        if scheduler is not None:
            vars(scheduler).clear()
            vars(scheduler).update(before)
        raise


def _is_plain(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(_is_plain(item) for item in value)
    return value is None or isinstance(value, bool | int | float | str)


def _number(name: str, value: float, allowed: str, *, above: float | None = None, below: float = math.inf) -> None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0 <= value < below or (above is not None and not value > above):
        raise OptionError(f"{name} is {value!r}", way_out=f"use {allowed}")
