"""An nn.Module or an ONNX file becomes a verified graph, with parameters as named inputs."""

from ontrain.capture.aten import aten
from ontrain.capture.module import Captured, capture
from ontrain.capture.names import REQUIRES_GRAD
from ontrain.capture.onnx_file import OnnxModel, load_onnx
from ontrain.capture.structure import CallSpec, Spec
from ontrain.capture.validate import validate

__all__ = ["REQUIRES_GRAD", "CallSpec", "Captured", "OnnxModel", "Spec", "aten", "capture", "load_onnx", "validate"]
