"""onnxruntime.capi.onnxruntime_inference_collection's names; sessions and bindings are ontrain's."""

from __future__ import annotations

from typing import Any

from ontrain.stock import stock_module

_SESSIONS = ("IOBinding", "InferenceSession")


def __getattr__(name: str) -> Any:
    if name in _SESSIONS:
        from ontrain import inference

        return getattr(inference, name)
    return getattr(stock_module(f"onnxruntime.capi.{__name__.rpartition('.')[2]}"), name)
