"""ONNX files as they lie on the disk: read, checked, and guarded for stock onnxruntime. Needs the package onnx only."""
