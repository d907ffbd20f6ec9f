"""Sessions: what holds state and plans between calls."""

from ontrain.session.description import PlanOptions, TrainingTask
from ontrain.session.plans import Plan, make_plan
from ontrain.session.training import Counters, Exchange, TrainingSession

__all__ = [
    "Counters", "Exchange", "Plan", "PlanOptions", "TrainingSession", "TrainingTask", "make_plan",
]  # fmt: skip
