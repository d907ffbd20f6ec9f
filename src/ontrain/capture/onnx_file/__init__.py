"""An ONNX file becomes a verified graph, with the initializers chosen to train as named inputs."""

from ontrain.capture.onnx_file.load import FiledModel, OnnxModel, load_filed, load_onnx

__all__ = ["FiledModel", "OnnxModel", "load_filed", "load_onnx"]
