"""What is said of steps in half precision before they begin."""

from __future__ import annotations

import warnings

from ontrain.providers import ExecutionProvider

__all__ = ["warn_of_slow_bfloat16"]


def warn_of_slow_bfloat16(provider: ExecutionProvider, *, stacklevel: int) -> None:
    """Say in one line that steps in bfloat16 will be slow, if the provider runs on a processor without units for it."""
    if not provider.capabilities.multiplies_bfloat16 and provider.device.startswith("cpu"):
        warnings.warn(
            f"{provider.name} has no units for bfloat16 on this processor: steps take longer than in float32, and save "
            "memory only",
            stacklevel=stacklevel,
        )
