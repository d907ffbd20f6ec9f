"""Settings of a process that programs for onnxruntime.capi._pybind_state make before they create a trainer.

Names that are not ontrain's are those of onnxruntime's own module.
"""

from __future__ import annotations

import enum
from typing import Any

from ontrain.errors import OptionError
from ontrain.stock import stock, stock_module
from ontrain.training import is_ortmodule_available, set_seed

__all__ = [
    "ArenaExtendStrategy",
    "cuda_mem_limit",
    "get_available_providers",
    "is_ortmodule_available",
    "set_arena_extend_strategy",
    "set_cuda_device_id",
    "set_cuda_mem_limit",
    "set_seed",
]

_settings = {"cuda_mem_limit": 0}


class ArenaExtendStrategy(enum.Enum):
    """How an arena grows: a plan's working memory is of the size that it needs, which is the second."""

    kNextPowerOfTwo = 0  # noqa: N815 (onnxruntime's names)
    kSameAsRequested = 1  # noqa: N815


def get_available_providers() -> list[str]:
    """Return the names of onnxruntime's providers here, to be given to `ontrain.InferenceSession`."""
    return list(stock().get_available_providers())


def set_cuda_device_id(value: int) -> None:
    """Make a GPU the current one; without CUDA there is none to choose, and an error.

    Raises:
        OptionError: there is no such GPU.
    """
    import torch

    count = torch.cuda.device_count()
    if _from_zero("device id", value) >= count:
        raise OptionError(f"there is no CUDA device {value}", reason=f"this machine has {count}")
    torch.cuda.set_device(value)


def set_cuda_mem_limit(value: int) -> None:
    """Limit the bytes that trainers on CUDA, created from now on, may use; 0 takes the limit away.

    Raises:
        OptionError: the limit is no whole number from 0.
    """
    _settings["cuda_mem_limit"] = _from_zero("memory limit", value)


def cuda_mem_limit() -> int:
    """Return what `set_cuda_mem_limit` has set, 0 at first."""
    return _settings["cuda_mem_limit"]


def set_arena_extend_strategy(value: ArenaExtendStrategy) -> None:
    """Accept the strategy that is followed in any case.

    Raises:
        OptionError: another strategy.
    """
    if value is not ArenaExtendStrategy.kSameAsRequested:
        raise OptionError(
            f"the arena cannot grow by {value}",
            reason="a plan's working memory is allocated once, of the size that it needs",
            way_out="use ArenaExtendStrategy.kSameAsRequested, or leave the call out",
        )


def _from_zero(name: str, value: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise OptionError(f"the {name} is {value!r}", way_out="use a whole number from 0")
    return value


def __getattr__(name: str) -> Any:
    return getattr(stock_module("onnxruntime.capi._pybind_state"), name)
