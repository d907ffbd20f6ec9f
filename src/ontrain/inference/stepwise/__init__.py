"""Graphs that no plan holds whole: planned regions alternate with steps that are sized when they run."""

from ontrain.inference.stepwise.elsewhere import Following
from ontrain.inference.stepwise.engine import Engine, lacks
from ontrain.inference.stepwise.inference import StepwiseGraph, is_numeric, may_need_steps
from ontrain.inference.stepwise.kernels import runs_as_step

__all__ = [
    "Engine",
    "Following",
    "StepwiseGraph",
    "is_numeric",
    "lacks",
    "may_need_steps",
    "runs_as_step",
]
