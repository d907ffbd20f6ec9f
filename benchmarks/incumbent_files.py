"""What `benchmarks.incumbent_worker` reads: a model's forward graph in training mode, and its batches."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

__all__ = ["export"]

OPSET = 17


class _LossOf(torch.nn.Module):
    """A Hugging Face model as a function from positional tensors to its loss."""

    def __init__(self, model: torch.nn.Module, names: Sequence[str]) -> None:
        super().__init__()
        self.model, self.names = model, list(names)

    def forward(self, *tensors: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = self.model(**dict(zip(self.names, tensors, strict=True))).loss
        return loss


def export(model: Any, batches: Sequence[Mapping[str, torch.Tensor]], folder: Path, lr: float) -> None:
    """Write the forward graph in training mode, the batches and the trainable parameters' names to a folder.

    Attention is exported as the products and softmax that it consists of, its dropout included: the exporter of that
    opset has no rule for the fused operator in training.
    """
    if hasattr(model, "set_attn_implementation"):
        model.set_attn_implementation("eager")
    names = list(batches[0])
    # Sizes are named only where they vary: the incumbent dies of dynamic sizes in a model without dropout.
    vary = [n for n in names if len({batch[n].shape for batch in batches}) > 1]
    axes = {name: dict(enumerate(("batch", "sequence")[: batches[0][name].dim()])) for name in vary}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.register_custom_op_symbolic("aten::layer_norm", _layer_norm, OPSET)
        torch.onnx.register_custom_op_symbolic("aten::diff", _diff, OPSET)
        torch.onnx.register_custom_op_symbolic("aten::cumsum", _cumsum, OPSET)
        torch.onnx.export(
            _LossOf(model, names), tuple(batches[0].values()), str(folder / "forward.onnx"), dynamo=False,
            training=torch.onnx.TrainingMode.TRAINING, do_constant_folding=False, opset_version=OPSET,
            input_names=names, output_names=["loss"], dynamic_axes=axes,
        )  # fmt: skip
    trainable = [f"model.{name}" for name, p in model.named_parameters() if p.requires_grad]
    (folder / "trainable.json").write_text(json.dumps(trainable))
    (folder / "lr").write_text(str(lr))
    arrays = {f"{i}.{name}": tensor.numpy() for i, batch in enumerate(batches) for name, tensor in batch.items()}
    np.savez(folder / "batches.npz", **arrays)


def _layer_norm(g: Any, x: Any, shape: Any, weight: Any, bias: Any, epsilon: Any, cudnn: Any) -> Any:
    """The whole operator with the three outputs that the incumbent's gradient of it reads."""
    from torch.onnx import symbolic_helper

    axis = -len(symbolic_helper._maybe_get_const(shape, "is"))
    value = symbolic_helper._maybe_get_const(epsilon, "f")
    y, *_ = g.op("LayerNormalization", x, weight, bias, epsilon_f=value, axis_i=axis, stash_type_i=1, outputs=3)
    y.setType(x.type())
    return y


def _diff(g: Any, x: Any, n: Any, axis: Any, prepend: Any, append: Any) -> Any:
    """Each entry less the one before it; a model of transformers looks so for where sequences begin."""
    from torch.onnx import symbolic_helper

    assert symbolic_helper._maybe_get_const(n, "i") == 1
    at = symbolic_helper._maybe_get_const(axis, "i")
    parts = [part for part in (prepend, x, append) if not symbolic_helper._is_none(part)]
    whole = g.op("Concat", *parts, axis_i=at) if len(parts) > 1 else x

    def number(value: int) -> Any:
        return g.op("Constant", value_t=torch.tensor([value]))

    later = g.op("Slice", whole, number(1), number(torch.iinfo(torch.int64).max), number(at))
    return g.op("Sub", later, g.op("Slice", whole, number(0), number(-1), number(at)))


def _cumsum(g: Any, x: Any, axis: Any, dtype: Any) -> Any:
    """Sums of integers; the operator has none of bools."""
    from torch.onnx import symbolic_helper

    at = g.op("Constant", value_t=torch.tensor(symbolic_helper._maybe_get_const(axis, "i")))
    return g.op("CumSum", g.op("Cast", x, to_i=int(torch.onnx.TensorProtoDataType.INT64)), at)
