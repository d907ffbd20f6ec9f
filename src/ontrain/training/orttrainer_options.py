"""`ORTTrainerOptions` where onnxruntime.training has it."""

from ontrain.training.options import ORTTrainerOptions

__all__ = ["ORTTrainerOptions"]
