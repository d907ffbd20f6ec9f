"""`torch.compile(model, backend="ontrain")`: the pieces of a program that TorchDynamo finds, each as one ONNX graph."""

from ontrain.training.compiled.backend import ontrain
from ontrain.training.compiled.pieces import Pieces

__all__ = ["Pieces", "ontrain"]
