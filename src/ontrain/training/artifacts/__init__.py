"""From an ONNX model to the files that train it on a device (onnxruntime.training.artifacts)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ontrain.training.artifacts.generate import LossType, OptimType, generate_artifacts

__all__ = ["LossType", "OptimType", "generate_artifacts"]


def __getattr__(name: str) -> Any:
    # onnxblock builds on this package's graphs, and what is named here builds on onnxblock.
    if name in __all__:
        from ontrain.training.artifacts import generate

        return getattr(generate, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
