"""onnx's backend API over sessions: what onnx's own test runner, and programs written for any runtime, ask for.

The module itself is the backend of onnxruntime's providers, under onnxruntime's names; `TorchBackend` is that of
`TorchExecutionProvider`.
"""

from __future__ import annotations

from ontrain.backend.backend import Backend, TorchBackend
from ontrain.backend.backend_rep import BackendRep

__all__ = [
    "Backend",
    "BackendRep",
    "TorchBackend",
    "is_compatible",
    "prepare",
    "run",
    "run_model",
    "run_node",
    "supports_device",
]

is_compatible = Backend.is_compatible
prepare = Backend.prepare
run = run_model = Backend.run_model
run_node = Backend.run_node
supports_device = Backend.supports_device
