"""onnxruntime.training.utils' import path: what it holds lives in `ontrain.training.data`."""
