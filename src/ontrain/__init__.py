"""ontrain: trains any PyTorch module or ONNX file as one ONNX graph."""

from __future__ import annotations

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

if TYPE_CHECKING:
    from ontrain.session import InferenceSession

__version__ = "0.1.0"
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
    "get_available_providers",
    "set_seed",
]


def get_available_providers() -> list[str]:
    """Return the names of the execution providers that can train here."""
    from ontrain.providers import available_providers

    return available_providers()


def set_seed(seed: int) -> None:
    """Seed the dropout of trainers that are created from now on and have no `utils.seed` of their own.

    Raises:
        OptionError: the seed is no whole number from 0.
    """
    from ontrain.training.process import set_seed

    set_seed(seed)


def __getattr__(name: str) -> Any:
    # Sessions bring torch and onnxruntime: loaded when first asked for, so that `import ontrain` stays quick.
    if name == "InferenceSession":
        from ontrain.session import InferenceSession

        return InferenceSession
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
