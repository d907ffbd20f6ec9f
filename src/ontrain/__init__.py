"""ontrain: trains any PyTorch module or ONNX file as one ONNX graph."""
