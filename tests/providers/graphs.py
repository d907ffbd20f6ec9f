"""Graphs made by hand, and one run of them on a provider."""

from __future__ import annotations

import onnx_ir as ir
import torch

from ontrain.providers import get_provider


def float_input(name: str, shape: tuple[int, ...]) -> ir.Value:
    return ir.Value(name=name, shape=ir.Shape(shape), type=ir.TensorType(ir.DataType.FLOAT))


def run(
    model: ir.Model, feeds: dict[str, torch.Tensor], rng: tuple[int, int] = (0, 0), name: str = "TorchExecutionProvider"
) -> list[torch.Tensor]:
    """The outputs in the graph's order."""
    provider = get_provider(name)
    outputs = provider.compile(model, provider.create_state([])).run(feeds, rng=rng)
    return [torch.as_tensor(outputs[v.name]) for v in model.graph.outputs]
