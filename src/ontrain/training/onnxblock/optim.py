"""Optimizers as blocks: called inside `empty_base`, they make the model of an update."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from ontrain.arguments import checked_flag, checked_kind, checked_number, told
from ontrain.errors import InputError, OptionError
from ontrain.optim import OptimizerSpec
from ontrain.training.artifacts.optimizer import optimizer_graph
from ontrain.training.artifacts.proto import to_proto
from ontrain.training.onnxblock.blocks import Block
from ontrain.training.onnxblock.training import Parameters, check_trainable

__all__ = ["SGD", "AdamW", "ClipGradNorm"]


class ClipGradNorm(Block):
    """Scales all gradients so that their common norm is `max_norm` at most (torch.nn.utils.clip_grad_norm_).

    Called with names of gradients, or with that of one sequence of them.

    Raises:
        OptionError: `max_norm` is not positive.
    """

    def __init__(self, max_norm: float) -> None:
        super().__init__()
        self.max_norm = checked_number("max_norm", max_norm, "a positive norm", at_least=0, infinite=True)
        if not self.max_norm:
            raise OptionError("max_norm is 0", way_out="give a positive norm")

    def build(self, *gradient_names: str) -> list[str] | str:
        """Add the scaling; return the names of the scaled gradients, or that of the sequence of them."""
        on = self.on
        if len(gradient_names) == 1 and on.is_sequence(gradient_names[0]):
            (name,) = gradient_names
            squares = on.each(name, "ReduceSumSquare", keepdims=0)
            stacked = on.node("ConcatFromSequence", [squares], axis=0, new_axis=1)
            factor = self._factor(on.node("ReduceSum", [stacked], keepdims=0))
            return on.each(name, "Mul", factor)
        squares_of = [on.node("ReduceSumSquare", [name], keepdims=0) for name in gradient_names]
        factor = self._factor(on.node("Sum", squares_of))
        return [on.node("Mul", [name, factor]) for name in gradient_names]

    def _factor(self, square: str) -> str:
        """What gradients of this squared norm are multiplied by."""
        on = self.on
        epsilon, norm = (on.constant(np.array(v, np.float32), "clip") for v in (1e-6, self.max_norm))
        ratio = on.node("Div", [norm, on.node("Add", [on.node("Sqrt", [square]), epsilon])])
        return on.node("Min", [ratio, on.constant(np.array(1.0, np.float32), "clip")])


class _Optimizer(Block):
    def __init__(self, spec: OptimizerSpec, clip_grad: ClipGradNorm | None) -> None:
        super().__init__()
        if clip_grad is not None:
            checked_kind("clip_grad", clip_grad, ClipGradNorm, "give an onnxblock.optim.ClipGradNorm, or None")
        self.spec, self.max_norm = spec, None if clip_grad is None else clip_grad.max_norm
        self._model: onnx.ModelProto | None = None

    def build(self, parameters: Parameters) -> list[str]:
        """Make the base model the update of the trained parameters; return the names of its outputs.

        Args:
            parameters: what `TrainingBlock.parameters` returns.
        """
        check_trainable(parameters)
        trained = {tensor.name: (list(tensor.dims), ir.DataType(tensor.data_type)) for tensor in parameters[0]}
        self._model = to_proto(optimizer_graph(trained, self.spec, self.max_norm))
        self.on.model.CopyFrom(self._model)
        return [value.name for value in self._model.graph.output]

    def to_model_proto(self) -> onnx.ModelProto:
        """Return the model.

        Raises:
            InputError: the block was not called yet.
        """
        if self._model is None:
            raise InputError("the model is not built yet", way_out="call the block inside `with empty_base():`")
        return self._model


class AdamW(_Optimizer):
    """AdamW with its decay after the update, as Hugging Face's former AdamW and onnxruntime.training's.

    p' = p − lr · √(1−β₂ᵗ)/(1−β₁ᵗ) · m / (√v + eps), then p' − lr · weight_decay · p'.
    """

    def __init__(
        self, bias_correction: bool = True, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-6,
        weight_decay: float = 0.0, clip_grad: ClipGradNorm | None = None,
    ) -> None:  # fmt: skip
        alpha, beta = _betas(betas)
        settings: dict[str, Any] = {
            "alpha": alpha, "beta": beta,
            "epsilon": checked_number("eps", eps, "a number from 0", at_least=0),
            "weight_decay": checked_number("weight_decay", weight_decay, "a number from 0", at_least=0),
            "bias_correction": int(checked_flag("bias_correction", bias_correction)), "mode": 1,
        }  # fmt: skip
        super().__init__(OptimizerSpec("AdamW", settings), clip_grad)


def _betas(betas: object) -> tuple[float, float]:
    if not isinstance(betas, list | tuple) or len(betas) != 2:
        raise OptionError(f"betas is {told(betas)}", way_out="give a pair of numbers in [0, 1)")
    first, second = (checked_number("one of betas", beta, "a number in [0, 1)", at_least=0, below=1) for beta in betas)
    return first, second


class SGD(_Optimizer):
    """p' = p − lr · gradient."""

    def __init__(self, clip_grad: ClipGradNorm | None = None) -> None:
        super().__init__(OptimizerSpec("SGD"), clip_grad)
