"""Loss scalers: what the loss is multiplied by, so that small gradients survive half precision.

The gradient is divided by the same number before it is clipped and used. A step whose gradient overflowed is skipped.
Source: Micikevicius et al. 2018, section 3.2; names and arithmetic are onnxruntime.training.amp's.
"""

from __future__ import annotations

import math
from typing import Any, Protocol

from ontrain.errors import CheckpointError, OptionError

__all__ = ["DynamicLossScaler", "FiniteLike", "LossScaler"]


class FiniteLike(Protocol):
    """What a scaler reads of a run."""

    @property
    def all_finite(self) -> bool:
        """Whether the last gradient was finite."""


class LossScaler:
    """Base of loss scalers; a subclass gives `update`, and may keep state of its own.

    Args:
        loss_scale: what the loss is multiplied by at first, a positive number.

    Raises:
        OptionError: `loss_scale` is no positive number.
    """

    def __init__(self, loss_scale: float) -> None:
        _positive("loss_scale", loss_scale)
        self._initial_loss_scale = float(loss_scale)
        self.loss_scale = float(loss_scale)

    def reset(self) -> None:
        """Go back to the scale of the start."""
        self.loss_scale = self._initial_loss_scale

    def update(self, train_step_info: Any) -> float:
        """Set `loss_scale` for the next step and return it; the trainer calls this after each update, made or skipped.

        Args:
            train_step_info: the run's `TrainStepInfo`; `all_finite` says whether the gradient was finite.
        """
        raise NotImplementedError(f"{type(self).__name__} must define update(train_step_info)")

    def state_dict(self) -> dict[str, Any]:
        """Return the plain values among the attributes, for a checkpoint."""
        return {key: value for key, value in vars(self).items() if isinstance(value, bool | int | float | str)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what `state_dict` returned.

        Raises:
            CheckpointError: the state is that of a scaler with other attributes.
        """
        unknown = sorted(set(state) ^ set(self.state_dict()))
        if unknown:
            raise CheckpointError(
                f"the state of the loss scaler does not fit {type(self).__name__}", reason=f"differing: {unknown}"
            )
        vars(self).update(state)


class DynamicLossScaler(LossScaler):
    """Doubles the scale after `up_scale_window` finite steps in a row, and halves it after each one that overflowed.

    Args:
        automatic_update: False keeps the scale as it is.
        loss_scale: at first.
        up_scale_window: finite steps before the scale is doubled, from 1.
        min_loss_scale: where halving ends.
        max_loss_scale: where doubling ends.

    Raises:
        OptionError: an argument is out of range.
    """

    def __init__(
        self,
        automatic_update: bool = True,
        loss_scale: float = float(1 << 16),
        up_scale_window: int = 2000,
        min_loss_scale: float = 1.0,
        max_loss_scale: float = float(1 << 24),
    ) -> None:
        super().__init__(loss_scale)
        _positive("min_loss_scale", min_loss_scale)
        _positive("max_loss_scale", max_loss_scale)
        if not min_loss_scale <= loss_scale <= max_loss_scale:
            raise OptionError(
                f"loss_scale {loss_scale} is not within [{min_loss_scale}, {max_loss_scale}]",
                way_out="choose min_loss_scale ≤ loss_scale ≤ max_loss_scale",
            )
        if isinstance(up_scale_window, bool) or not isinstance(up_scale_window, int) or up_scale_window < 1:
            raise OptionError(f"up_scale_window is {up_scale_window!r}", way_out="use a whole number from 1")
        if not isinstance(automatic_update, bool):
            raise OptionError(f"automatic_update is {automatic_update!r}", way_out="use True or False")
        self.automatic_update = automatic_update
        self.up_scale_window = up_scale_window
        self.min_loss_scale, self.max_loss_scale = float(min_loss_scale), float(max_loss_scale)
        self._stable_steps_count = 0

    def reset(self) -> None:
        """Go back to the scale of the start, with no finite step counted."""
        super().reset()
        self._stable_steps_count = 0

    def update(self, train_step_info: FiniteLike) -> float:
        """Set the scale for the next step and return it."""
        if not self.automatic_update:
            return self.loss_scale
        if not train_step_info.all_finite:
            self.loss_scale = max(self.min_loss_scale, self.loss_scale / 2)
            self._stable_steps_count = 0
            return self.loss_scale
        self._stable_steps_count += 1
        if self._stable_steps_count >= self.up_scale_window:
            self.loss_scale = min(self.max_loss_scale, self.loss_scale * 2)
            self._stable_steps_count = 0
        return self.loss_scale


def _positive(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise OptionError(f"{name} is {value!r}", way_out="use a positive number")
