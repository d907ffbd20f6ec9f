"""What a capture depends on beside module and call: what a caller has set for all of torch."""

from __future__ import annotations

import functools
import os
import types
from collections.abc import Callable, Collection, Hashable

import torch

from ontrain.internals import dispatch_modes, function_modes, global_hooks
from ontrain.training.ortmodule.key import Same

__all__ = ["questions", "surroundings"]

_FUNCTIONS = (types.FunctionType, types.MethodType)

_QUESTIONS: dict[str, Callable[[], Hashable]] = {
    "allow_tf32": lambda: (torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32),
    "are_deterministic_algorithms_enabled": torch.are_deterministic_algorithms_enabled,
    "benchmark": lambda: torch.backends.cudnn.benchmark,
    "cudnn_sdp_enabled": torch.backends.cuda.cudnn_sdp_enabled,
    "deterministic": lambda: torch.backends.cudnn.deterministic,
    "flash_sdp_enabled": torch.backends.cuda.flash_sdp_enabled,
    "get_deterministic_debug_mode": torch.get_deterministic_debug_mode,
    "get_float32_matmul_precision": torch.get_float32_matmul_precision,
    "get_num_interop_threads": torch.get_num_interop_threads,
    "get_num_threads": torch.get_num_threads,
    "initial_seed": torch.initial_seed,
    "is_anomaly_check_nan_enabled": torch.is_anomaly_check_nan_enabled,
    "is_anomaly_enabled": torch.is_anomaly_enabled,
    "is_deterministic_algorithms_warn_only_enabled": torch.is_deterministic_algorithms_warn_only_enabled,
    "math_sdp_enabled": torch.backends.cuda.math_sdp_enabled,
    "mem_efficient_sdp_enabled": torch.backends.cuda.mem_efficient_sdp_enabled,
}
"""What forward may ask for that few do, by the name under which it asks."""


def questions(names: Collection[str]) -> list[Callable[[], Hashable]]:
    """Return what answers as torch, or the environment of the process, answers forward.

    Args:
        names: those that forward, and the functions of the user's that it calls, look up, texts among them.
    """
    asked = [ask for name, ask in _QUESTIONS.items() if name in names]
    if "environ" in names or "getenv" in names:
        variables = sorted(name for name in names if name.isupper() or name in os.environ)
        asked.append(functools.partial(_variables, variables))
    return asked


def _variables(names: Collection[str]) -> Hashable:
    return tuple([os.environ.get(name) for name in names])


def surroundings() -> tuple[Hashable, ...]:
    """Return autocast, default dtype and device, modes that see functions or operators, and hooks of all modules."""
    return _autocast(), torch.get_default_dtype(), function_modes(), dispatch_modes(), _hooks()


def _autocast() -> tuple[tuple[str, torch.dtype], ...]:
    """The device types and dtypes that autocast is on for."""
    return tuple(
        [(kind, torch.get_autocast_dtype(kind)) for kind in ("cpu", "cuda") if torch.is_autocast_enabled(kind)]
    )


def _hooks() -> tuple[Hashable, ...]:
    forward, backward = global_hooks()
    return tuple([hook if type(hook) in _FUNCTIONS else Same(hook) for hook in (*forward, *backward)])
