"""Numbers looked up in tables."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import torch

from ontrain.capture import to_tensor
from ontrain.functions import table_of
from ontrain.operators import ML
from ontrain.providers.torch.emitter import Emitter
from ontrain.providers.torch.lowering.registry import attributes, lowers

__all__: list[str] = []


def _of_numbers(node: ir.Node) -> bool:
    table = table_of(node)
    return bool(table.keys.dtype != object and table.values.dtype != object)


@lowers("LabelEncoder", domain=ML, when=_of_numbers)
def label_encoder(e: Emitter, node: ir.Node) -> None:
    table = table_of(node)
    keys, first = np.unique(table.keys, return_index=True)
    values, default = to_tensor(table.values[first]).to(e.device), to_tensor(np.asarray(table.default)).to(e.device)
    of_nan = values[-1] if keys.dtype.kind == "f" and len(keys) and np.isnan(keys[-1]) else None
    if of_nan is not None:
        keys, values = keys[:-1], values[:-1]
    in_order = to_tensor(keys).to(e.device)

    def run(x: torch.Tensor) -> torch.Tensor:
        asked = x.to(in_order.dtype).contiguous()
        result = default.expand(x.shape)
        if len(in_order):
            places = torch.searchsorted(in_order, asked).clamp_(max=len(in_order) - 1)
            result = torch.where(in_order[places] == asked, values[places], default)
        return result if of_nan is None else torch.where(asked.isnan(), of_nan, result)

    e.compute(run, e.value(node.inputs[0]), outs=[e.out(node.outputs[0])])


def _refuses(node: ir.Node) -> bool:
    x = node.inputs[0]
    stated = node.attributes.get("zeros")
    return stated is not None and stated.value == 0 and x is not None and x.dtype != ir.DataType.STRING


@lowers("OneHotEncoder", domain=ML, when=_refuses)
def one_hot_encoder(e: Emitter, node: ir.Node) -> None:
    categories = torch.tensor(attributes(node)["cats_int64s"], device=e.device)

    def run(x: torch.Tensor) -> torch.Tensor:
        hot = x.to(torch.int64).unsqueeze(-1) == categories
        if not bool(hot.any(-1).all()):
            raise ValueError("a category is not listed, and the attribute zeros is 0")
        return hot.float()

    e.compute(run, e.value(node.inputs[0]), outs=[e.out(node.outputs[0])])
