"""Inference: a file run under onnxruntime's names, by onnxruntime or by one of ontrain's providers.

What onnxruntime alone runs needs neither torch nor the other rooms, so they are imported when a model goes to one of
ontrain's providers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ontrain.inference.adapters import LoraAdapter
from ontrain.inference.options import RunOptions, SessionOptions
from ontrain.inference.session import InferenceSession, IOBinding
from ontrain.inference.upstream_errors import also as also

if TYPE_CHECKING:
    from ontrain.inference.samples import read_feeds as read_feeds

__all__ = ["IOBinding", "InferenceSession", "LoraAdapter", "RunOptions", "SessionOptions"]


def __getattr__(name: str) -> Any:
    if name == "read_feeds":
        from ontrain.inference.samples import read_feeds

        return read_feeds
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
