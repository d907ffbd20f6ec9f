"""The training API under onnxruntime.training's names.

What is named here is loaded when it is first asked for: `ontrain.training.api` runs where there is no torch.
"""

from __future__ import annotations

import importlib
import importlib.util
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ontrain.training import amp, checkpoint, optim
    from ontrain.training.environment import Environment as Environment, collect_environment as collect_environment
    from ontrain.training.options import ORTTrainerOptions
    from ontrain.training.orttrainer import ORTTrainer
    from ontrain.training.process import set_seed as set_seed
    from ontrain.training.step_info import TrainStepInfo

__all__ = ["ORTTrainer", "ORTTrainerOptions", "TrainStepInfo", "amp", "checkpoint", "is_ortmodule_available", "optim"]

_HOMES = {
    "Environment": "environment",
    "ORTTrainer": "orttrainer",
    "ORTTrainerOptions": "options",
    "TrainStepInfo": "step_info",
    "collect_environment": "environment",
    "set_seed": "process",
}
"""The file in which each name stands."""


def is_ortmodule_available() -> bool:
    """Return whether `ontrain.training.ortmodule` can be imported: whether there is torch."""
    return importlib.util.find_spec("torch") is not None


def __getattr__(name: str) -> Any:
    if name in ("amp", "checkpoint", "optim"):
        return importlib.import_module(f"ontrain.training.{name}")
    if name in _HOMES:
        return getattr(importlib.import_module(f"ontrain.training.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
