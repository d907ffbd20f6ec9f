"""Every operator on operands that are views: a transposed input is free, and kernels must not mind its strides."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
import torch

from ontrain.graph import Builder, rebuild, static_dims
from ontrain.providers import get_provider
from tests.autodiff.graphs import SampleGraph
from tests.autodiff.samples import IDS, SAMPLES


@pytest.mark.sampled(4)
@pytest.mark.parametrize("sample", SAMPLES, ids=IDS)
def test_transposed_operands_give_the_same(sample, rng):
    if sample.op_type == "Dropout":
        pytest.skip("each provider draws its own mask")
    graph = SampleGraph(sample, sample.draw(rng))
    seeds = graph.seeds(graph.y, rng, "dy")
    grads = [g for g in graph.gradient(graph.y, seeds, graph.wrt) if g is not None]
    outputs = list(dict.fromkeys(v for v in (*graph.y, *grads) if v.producer() is not None))
    wanted = graph.evaluator(outputs)()
    op = Builder(graph.model.graph)
    for value in outputs:
        copy = op.Identity(value)
        copy.name = f"out.{value.name}"
        graph.model.graph.outputs.append(copy)
    feeds = {name: torch.as_tensor(array) for name, array in graph.feeds.items()}
    _transpose_inputs(graph.model.graph, feeds)

    provider = get_provider("TorchExecutionProvider")
    results = provider.compile(rebuild(graph.model), provider.create_state([])).run(feeds)
    tolerance = 1e-9 if sample.dtype == "float64" else 1e-5
    for value, expected in zip(outputs, wanted, strict=True):
        actual = np.asarray(results[f"out.{value.name}"])
        np.testing.assert_allclose(actual, expected, rtol=tolerance, atol=tolerance * max(1, np.abs(expected).max()))


def _transpose_inputs(graph: ir.Graph, feeds: dict[str, torch.Tensor]) -> None:
    """Have inputs come with their axes in reverse, and a Transpose put them right."""
    for index, value in enumerate(graph.inputs):
        rank = len(static_dims(value))
        if rank < 2 or value.dtype not in (ir.DataType.FLOAT, ir.DataType.DOUBLE):
            continue
        turned = ir.Value(name=f"{value.name}.turned", type=value.type, shape=ir.Shape(static_dims(value)[::-1]))
        node = ir.Node("", "Transpose", [turned], [ir.AttrInt64s("perm", list(range(rank))[::-1])], num_outputs=1)
        node.outputs[0].type, node.outputs[0].shape = value.type, value.shape
        ir.convenience.replace_all_uses_with(value, node.outputs[0])
        graph.insert_before(next(iter(graph)), node)
        graph.inputs[index] = turned
        tensor = feeds.pop(str(value.name))
        feeds[turned.name] = tensor.permute(*range(rank)[::-1]).contiguous()
