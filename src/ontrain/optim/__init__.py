"""From a loss and an optimizer's hyper-parameters to the graph of a whole training step."""

from ontrain.optim.loss import LOSSES, add_loss, loss_weight
from ontrain.optim.spec import OptimizerSpec
from ontrain.optim.step import StepKind, build_step

__all__ = ["LOSSES", "OptimizerSpec", "StepKind", "add_loss", "build_step", "loss_weight"]
