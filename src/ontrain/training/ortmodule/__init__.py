"""`ORTModule`, under onnxruntime.training.ortmodule's names."""

from ontrain.training.ortmodule.debug import DebugOptions, LogLevel
from ontrain.training.ortmodule.module import ORTModule

__all__ = ["DebugOptions", "LogLevel", "ORTModule"]
