"""What guards, dimensions, artifacts and plans say of a batch's sizes: one type of expression."""

from ontrain.sizes.expression import Call, Number, Size
from ontrain.sizes.interpolation import Sizes, fit, free_sizes, sample_sizes
from ontrain.sizes.regression import Features, NumberRule, UnfitError
from ontrain.sizes.text import evaluated, parse

__all__ = [
    "Call", "Features", "Number", "NumberRule", "Size", "Sizes", "UnfitError", "evaluated", "fit", "free_sizes",
    "parse", "sample_sizes",
]  # fmt: skip
