"""Loss scaling for training in half precision, under onnxruntime.training.amp's names."""

from ontrain.training.amp import loss_scaler
from ontrain.training.amp.loss_scaler import DynamicLossScaler, LossScaler

__all__ = ["DynamicLossScaler", "LossScaler", "loss_scaler"]
