"""An ONNX file becomes a verified graph, with the initializers chosen to train as named inputs."""

from ontrain.capture.onnx_file.load import OnnxModel, load_onnx

__all__ = ["OnnxModel", "load_onnx"]
