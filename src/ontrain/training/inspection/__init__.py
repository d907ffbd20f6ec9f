"""Convergence tools: statistics of what a module computes inside, step by step, and two runs compared by them.

Public under onnxruntime's import path, `ontrain.training.utils.hooks`.
"""

from ontrain.training.inspection.compare import Comparison, Difference, compare_runs
from ontrain.training.inspection.merge import merge_runs
from ontrain.training.inspection.statistics import Statistics, StatisticsSubscriber, summarise
from ontrain.training.inspection.subscribers import (
    GlobalSubscriberManager,
    Subscriber,
    SubscriberManager,
    any_subscribed,
    inspect_activation,
    inspects,
)

__all__ = [
    "Comparison",
    "Difference",
    "GlobalSubscriberManager",
    "Statistics",
    "StatisticsSubscriber",
    "Subscriber",
    "SubscriberManager",
    "any_subscribed",
    "compare_runs",
    "inspect_activation",
    "inspects",
    "merge_runs",
    "summarise",
]
