"""Sessions: what holds state and plans between calls."""

from ontrain.session.inference import InferenceSession
from ontrain.session.plans import Plan, make_plan
from ontrain.session.training import Counters, Exchange, TrainingSession

__all__ = ["Counters", "Exchange", "InferenceSession", "Plan", "TrainingSession", "make_plan"]
