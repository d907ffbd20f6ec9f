"""Gradients of graphs: a registry of small rules and one driver."""

import ontrain.autodiff.control
import ontrain.autodiff.custom  # noqa: F401 (both register rules)
from ontrain.autodiff.backward import (
    ADJOINT,
    build_backward,
    differentiable_outputs,
    following_outputs as following_outputs,
)
from ontrain.autodiff.derivatives import (
    asks_for_derivatives,
    gradient_model as gradient_model,
    is_derivative as is_derivative,
    with_derivatives,
)
from ontrain.autodiff.differentiability import Differentiability, differentiability
from ontrain.autodiff.driver import differentiate, reached_from as reached_from
from ontrain.autodiff.op import Op
from ontrain.operators import elementwise, gradient, zero_gradient

__all__ = [
    "ADJOINT",
    "Differentiability",
    "Op",
    "asks_for_derivatives",
    "build_backward",
    "differentiability",
    "differentiable_outputs",
    "differentiate",
    "elementwise",
    "gradient",
    "with_derivatives",
    "zero_gradient",
]
