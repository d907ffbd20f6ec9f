"""`ORTModule`, under onnxruntime.training.ortmodule's names."""

from ontrain.training.ortmodule.module import ORTModule

__all__ = ["ORTModule"]
