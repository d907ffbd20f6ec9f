"""Gradients of graphs: a registry of small rules and one driver."""

import ontrain.autodiff.rules  # noqa: F401 (registers the rules)
from ontrain.autodiff.driver import differentiate
from ontrain.autodiff.registry import Op, elementwise, gradient, zero_gradient

__all__ = ["Op", "differentiate", "elementwise", "gradient", "zero_gradient"]
