"""Operators that run as steps: results sized by values, sequences, optional values, strings, maps."""

from ontrain.inference.stepwise.kernels import maps, ngrams, selection, sequences, sized, strings, tables
from ontrain.inference.stepwise.kernels.registry import runs_as_step

__all__ = ["maps", "ngrams", "runs_as_step", "selection", "sequences", "sized", "strings", "tables"]
