"""The first API's loss scaler: the later one under other names."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from ontrain.training import amp

__all__ = ["LossScaler"]


class LossScaler(amp.DynamicLossScaler):
    """A loss scale; if dynamic, `update_loss_scale` doubles it after a window of finite steps, halves it after others.

    Args:
        loss_scale_input_name: name that `train_step` takes the scale under.
        is_dynamic_scale: False keeps the scale as it is.
        loss_scale: at first.
        up_scale_window: finite steps in a row before it is doubled.
        min_loss_scale, max_loss_scale: its bounds.

    Raises:
        OptionError: an argument is out of range.
    """

    def __init__(
        self,
        loss_scale_input_name: str,
        is_dynamic_scale: bool,
        loss_scale: float = float(1 << 16),
        up_scale_window: int = 2000,
        min_loss_scale: float = 1.0,
        max_loss_scale: float = float(1 << 24),
    ) -> None:
        super().__init__(is_dynamic_scale, loss_scale, up_scale_window, min_loss_scale, max_loss_scale)
        self.loss_scale_input_name_ = loss_scale_input_name

    @property
    def loss_scale_(self) -> float:
        """What the loss is multiplied by now."""
        return self.loss_scale

    @property
    def is_dynamic_scale_(self) -> bool:
        """Whether `update_loss_scale` changes anything."""
        return self.automatic_update

    def update_loss_scale(self, is_all_finite: Any) -> None:
        """Count a step whose gradient was finite; halve the scale after any other step."""
        self.update(SimpleNamespace(all_finite=bool(is_all_finite)))
