"""What the environment says: the variables that ontrain reads, those of onnxruntime's ORTModule, and the machine."""

from ontrain.training.environment.report import Environment, collect_environment
from ontrain.training.environment.variables import VARIABLES, Variable, is_on, unknown_variables, warn_of_ignored

__all__ = [
    "VARIABLES",
    "Environment",
    "Variable",
    "collect_environment",
    "is_on",
    "unknown_variables",
    "warn_of_ignored",
]
