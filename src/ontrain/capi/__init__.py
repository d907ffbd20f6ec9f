"""onnxruntime.capi's names: the first trainer API, and whatever else the installed onnxruntime has there.

`from ontrain.capi.ort_trainer import ORTTrainer, …` is ontrain's; `ontrain.capi.onnxruntime_pybind11_state`, with the
exceptions, is onnxruntime's own module.
"""

from __future__ import annotations

import importlib
from typing import Any

from ontrain.stock import stock


def __getattr__(name: str) -> Any:
    # onnxruntime has imported its modules by then, so programs say `onnxruntime.capi.onnxruntime_pybind11_state.Fail`.
    if not name.startswith("__") and hasattr(stock().capi, name):
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
