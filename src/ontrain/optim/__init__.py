"""From a loss and an optimizer's hyper-parameters to the graph of a whole training step."""

from ontrain.optim.hyper import Hyper
from ontrain.optim.loss import LOSSES, TORCH_NAMES as TORCH_NAMES, add_loss, loss_weight
from ontrain.optim.spec import OptimizerSpec
from ontrain.optim.step import StepKind, build_step
from ontrain.optim.update import Part, build_lamb_directions, build_lamb_moves, build_update

__all__ = [
    "LOSSES",
    "Hyper",
    "OptimizerSpec",
    "Part",
    "StepKind",
    "add_loss",
    "build_lamb_directions",
    "build_lamb_moves",
    "build_step",
    "build_update",
    "loss_weight",
]
