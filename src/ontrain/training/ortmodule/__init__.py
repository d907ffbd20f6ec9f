"""`ORTModule`, under onnxruntime.training.ortmodule's names."""

from ontrain.training.ortmodule.debug import DebugOptions, LogLevel
from ontrain.training.ortmodule.fallback import FallbackPolicy
from ontrain.training.ortmodule.ort_module import ORTModule

__all__ = ["DebugOptions", "FallbackPolicy", "LogLevel", "ORTModule"]
