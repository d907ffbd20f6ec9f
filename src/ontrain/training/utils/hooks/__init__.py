"""onnxruntime.training.utils.hooks' import path for the convergence tools of `ontrain.training.inspection`."""

from ontrain.training.inspection import (
    Comparison,
    Difference,
    GlobalSubscriberManager,
    StatisticsSubscriber,
    Subscriber,
    SubscriberManager,
    compare_runs,
    inspect_activation,
)

__all__ = [
    "Comparison",
    "Difference",
    "GlobalSubscriberManager",
    "StatisticsSubscriber",
    "Subscriber",
    "SubscriberManager",
    "compare_runs",
    "inspect_activation",
]
