"""Whether a model can be trained, by whom, and what a step would cost: what `ontrain check` and `plan` print."""

from ontrain.session.check.memory_plan import ClusterRow, MemoryPlan, MemoryRow, plan_memory
from ontrain.session.check.operators import OperatorSupport, check_operators
from ontrain.session.check.report import CheckReport, Cost, OperatorUse, ParameterUse, Problem
from ontrain.session.check.sources import DEFAULT_PROVIDER, check_file, check_module, load_factory, load_function

__all__ = [
    "DEFAULT_PROVIDER",
    "CheckReport",
    "ClusterRow",
    "Cost",
    "MemoryPlan",
    "MemoryRow",
    "OperatorSupport",
    "OperatorUse",
    "ParameterUse",
    "Problem",
    "check_file",
    "check_module",
    "check_operators",
    "load_factory",
    "load_function",
    "plan_memory",
]
