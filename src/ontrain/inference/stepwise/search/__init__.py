"""Searches for text: operators of onnxruntime's that run a decoder token by token."""

from ontrain.inference.stepwise.search.beam import BeamSearch, WhisperBeamSearch
from ontrain.inference.stepwise.search.greedy import GreedySearch, Sampling

__all__ = ["SEARCHES"]

SEARCHES = {kind.operator: kind for kind in (BeamSearch, GreedySearch, Sampling, WhisperBeamSearch)}
"""By operator."""
