"""Stock onnxruntime as a provider: the step graph in plain operators, run by one session with its state bound."""

from ontrain.providers.onnxruntime.provider import OnnxRuntimeExecutionProvider

__all__ = ["OnnxRuntimeExecutionProvider"]
