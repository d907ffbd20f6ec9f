"""`TrainStepInfo`: where a run stands, as schedulers and loss scalers see it."""

from __future__ import annotations

from dataclasses import dataclass, field

from ontrain.errors import OptionError
from ontrain.training.optim.config import _OptimizerConfig

__all__ = ["TrainStepInfo"]


@dataclass
class TrainStepInfo:
    """Where a run stands (names are onnxruntime's).

    Attributes:
        optimizer_config: the optimizer's configuration.
        all_finite: whether the last gradient was.
        fetches: names of the outputs that `train_step` and `eval_step` return; empty for all described outputs.
        optimization_step: updates made. Updates skipped because of a gradient that is not finite do not count.
        step: micro-batches seen.

    Raises:
        OptionError: a value is of the wrong kind.
    """

    optimizer_config: _OptimizerConfig
    all_finite: bool = True
    fetches: list[str] = field(default_factory=list)
    optimization_step: int = 0
    step: int = 0

    def __post_init__(self) -> None:
        if not isinstance(self.optimizer_config, _OptimizerConfig):
            raise OptionError(
                f"optimizer_config is a {type(self.optimizer_config).__name__}",
                way_out="give optim.SGDConfig, AdamConfig or LambConfig",
            )
        if not isinstance(self.all_finite, bool):
            raise OptionError(f"all_finite is {self.all_finite!r}", way_out="give True or False")
        if not isinstance(self.fetches, list) or not all(isinstance(name, str) for name in self.fetches):
            raise OptionError(f"fetches is {self.fetches!r}", way_out="give a list of names of outputs")
        for name in ("optimization_step", "step"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                raise OptionError(f"{name} is {value!r}", way_out="give a whole number from 0")
