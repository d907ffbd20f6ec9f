"""Inference: a file run under onnxruntime's names, by onnxruntime or by one of ontrain's providers.

What onnxruntime alone runs needs neither torch nor the other rooms, so they are imported when a model goes to one of
ontrain's providers.
"""

from ontrain.inference.options import RunOptions, SessionOptions
from ontrain.inference.session import InferenceSession, IOBinding

__all__ = ["IOBinding", "InferenceSession", "RunOptions", "SessionOptions"]
