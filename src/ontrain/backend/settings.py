"""Settings that a caller of a backend may pass as keywords."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from ontrain.errors import OptionError
from ontrain.inference import also

__all__ = ["set_allowed"]


def set_allowed(options: Any, allowed: Collection[str], settings: Mapping[str, Any]) -> None:
    """Set attributes of session or run options; what the options do not know is left to others, as in onnxruntime.

    Raises:
        OptionError: a setting is none of the allowed: it would write files, or end the run.
    """
    for name, value in settings.items():
        if name in allowed:
            setattr(options, name, value)
        elif hasattr(options, name):
            error = OptionError(
                f"{type(options).__name__}.{name} is not permitted via the backend API",
                way_out=f"allowed are {', '.join(sorted(allowed))}; an InferenceSession takes all",
            )
            raise also(error, RuntimeError)
