"""The source of a trainer's graphs, chosen by what kind of model it is given."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import onnx
import onnx_ir as ir
import torch

from ontrain.errors import OptionError
from ontrain.training.model_desc import ModelDescription
from ontrain.training.onnx_source import OnnxSource
from ontrain.training.options import ORTTrainerOptions
from ontrain.training.source import ModelSource, ModuleSource

__all__ = ["source_of"]


def source_of(
    model: object, desc: ModelDescription, loss_fn: Callable[..., Any] | str | None, options: ORTTrainerOptions,
    requires_grad: Sequence[str] | None,
) -> ModelSource:  # fmt: skip
    """Return what gives the graphs of a module, or of an ONNX model.

    Args:
        model: see `ORTTrainer`, as for the others.
        desc: inputs and outputs.
        loss_fn: function of (first output, label), a loss's name for a file, or None.
        options: which weights stay, and whether captures are checked.
        requires_grad: names or patterns of a file's initializers to train; None for all weights.

    Raises:
        OptionError: the model is of another kind, or an argument does not belong to its kind.
    """
    frozen, check = options.utils.frozen_weights, options.debug.check_model_export
    if isinstance(model, str | os.PathLike | bytes | onnx.ModelProto | ir.Model):
        return OnnxSource(model, desc, loss_fn, requires_grad=requires_grad, frozen=frozen, check=check)
    if not isinstance(model, torch.nn.Module):
        raise OptionError(
            f"model is a {type(model).__name__}",
            way_out="give a torch.nn.Module, or the path or ModelProto of an ONNX model",
        )
    if requires_grad is not None:
        raise OptionError("requires_grad chooses initializers of an ONNX model", way_out="set it on the parameters")
    if isinstance(loss_fn, str):
        raise OptionError(f"loss_fn is {loss_fn!r}", way_out="give a function of (output, label)")
    return ModuleSource(model, desc, loss_fn, frozen=frozen, check=check)
