"""ontrain: trains any PyTorch module or ONNX file as one ONNX graph, and runs ONNX files under onnxruntime's names."""

from __future__ import annotations

import importlib
import logging
from typing import TYPE_CHECKING, Any

from ontrain.errors import (
    CaptureError,
    CheckpointError,
    GradientError,
    GraphError,
    InputError,
    NonFiniteLossError,
    OntrainError,
    OptionError,
    ProcessError,
    ProviderError,
)
from ontrain.stock import serve_submodules, stock

if TYPE_CHECKING:
    from ontrain.inference import InferenceSession, IOBinding, LoraAdapter, RunOptions, SessionOptions
    from ontrain.providers.torch import TensorType, op

__version__ = "0.1.0"
_SESSIONS = ("IOBinding", "InferenceSession", "LoraAdapter", "RunOptions", "SessionOptions")
_OPERATORS = ("TensorType", "op")
_UPSTREAM = (
    "AdapterFormat", "ExecutionMode", "ExecutionOrder", "GraphOptimizationLevel", "ModelMetadata",
    "NodeArg", "OrtAllocatorType", "OrtArenaCfg", "OrtDevice", "OrtMemType", "OrtMemoryInfo", "OrtSparseFormat",
    "OrtValue", "SessionIOBinding", "SparseTensor", "create_and_register_allocator",
    "disable_telemetry_events", "enable_telemetry_events", "get_build_info", "get_device", "get_version_string",
    "print_debug_info", "set_default_logger_severity", "set_default_logger_verbosity", "set_global_thread_pool_sizes",
)  # fmt: skip
"""onnxruntime's own, as they are. What else it has is found by `__getattr__`; versions of it differ in that."""
_PACKAGES = ("backend", "capi", "datasets", "quantization", "tools", "training", "transformers")
__all__ = [
    "CaptureError",
    "CheckpointError",
    "GradientError",
    "GraphError",
    "InferenceSession",
    "InputError",
    "NonFiniteLossError",
    "OntrainError",
    "OptionError",
    "ProcessError",
    "ProviderError",
    "TensorType",
    "get_all_providers",
    "get_available_providers",
    "op",
    "set_seed",
]
__all__ += ["IOBinding", "LoraAdapter", "RunOptions", "SessionOptions", *_UPSTREAM]


def get_available_providers() -> list[str]:
    """Return the names of the execution providers here: first onnxruntime's, then ontrain's, which can train."""
    from ontrain.providers import available_providers

    return [*stock().get_available_providers(), *available_providers()]


def get_all_providers() -> list[str]:
    """Return the names of all execution providers that onnxruntime knows and of ontrain's; the CPU's is the last."""
    from ontrain.providers import available_providers

    *others, last = stock().get_all_providers()
    return [*others, *available_providers(), last]


def set_seed(seed: int) -> None:
    """Seed what draws random numbers and states no seed of its own.

    These are the dropout of trainers, and the sessions of onnxruntime, that are created from now on.

    Raises:
        OptionError: the seed is no whole number from 0; also a TypeError where it is none at all.
    """
    from ontrain.inference import also
    from ontrain.training import set_seed

    try:
        set_seed(seed)
    except OptionError as error:
        raise error if isinstance(seed, int) else also(error, TypeError) from error
    stock().set_seed(seed)


def __getattr__(name: str) -> Any:
    # Sessions bring onnxruntime: loaded when first asked for, so that `import ontrain` stays quick.
    if name in _SESSIONS:
        from ontrain import inference

        return getattr(inference, name)
    if name in _OPERATORS:
        return getattr(importlib.import_module(f"{__name__}.providers.torch"), name)
    if name in _PACKAGES:
        return importlib.import_module(f"{__name__}.{name}")
    if not name.startswith("_") and hasattr(stock(), name):
        return getattr(stock(), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


# A program that shows its own INFO by `logging.basicConfig(level="INFO")` has not asked for a line per plan.
if not logging.getLogger(__name__).level:
    logging.getLogger(__name__).setLevel(logging.WARNING)
serve_submodules()
