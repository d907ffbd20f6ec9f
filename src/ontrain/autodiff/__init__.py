"""Gradients of graphs: a registry of small rules and one driver."""

import ontrain.autodiff.rules  # noqa: F401 (registers the rules)
from ontrain.autodiff.backward import ADJOINT, build_backward, differentiable_outputs
from ontrain.autodiff.differentiability import Differentiability, differentiability
from ontrain.autodiff.driver import differentiate
from ontrain.autodiff.registry import Op, elementwise, gradient, zero_gradient

__all__ = [
    "ADJOINT",
    "Differentiability",
    "Op",
    "build_backward",
    "differentiability",
    "differentiable_outputs",
    "differentiate",
    "elementwise",
    "gradient",
    "zero_gradient",
]
