"""Every operator and its gradient: native kernels of the torch provider against plain bodies in onnx's evaluator."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from ontrain.graph import Builder, rebuild
from ontrain.providers import get_provider
from tests.autodiff.graphs import SampleGraph
from tests.autodiff.samples import IDS, SAMPLES


@pytest.mark.parametrize("sample", SAMPLES, ids=IDS)
def test_native_kernels_equal_the_bodies(sample, rng):
    if sample.op_type == "Dropout" and sample.attributes.get("seed") is not None:
        pytest.skip("each provider draws its own mask; tests/providers/test_dropout.py looks at it")
    graph = SampleGraph(sample, sample.draw(rng))
    seeds = graph.seeds(graph.y, rng, "dy")
    grads = [g for g in graph.gradient(graph.y, seeds, graph.wrt) if g is not None]
    # A value that is a constant or an input has no producer to compute it; it needs no test either.
    outputs = list(dict.fromkeys(v for v in (*graph.y, *grads) if v.producer() is not None))
    wanted = graph.evaluator(outputs)()

    model = rebuild(graph.model) if not outputs else _with_outputs(graph, outputs)
    provider = get_provider("TorchExecutionProvider")
    executable = provider.compile(model, provider.create_state([]))
    found = executable.run({name: torch.as_tensor(array) for name, array in graph.feeds.items()})

    tolerance = 1e-9 if sample.dtype == "float64" else 1e-5
    for value, expected in zip(outputs, wanted, strict=True):
        actual = found[f"out.{value.name}"].numpy()
        assert actual.dtype == expected.dtype and actual.shape == expected.shape
        np.testing.assert_allclose(actual, expected, rtol=tolerance, atol=tolerance * max(1, np.abs(expected).max()))


def test_running_twice_gives_the_same(rng):
    for sample in SAMPLES[::10]:
        graph = SampleGraph(sample, sample.draw(rng))
        provider = get_provider("TorchExecutionProvider")
        executable = provider.compile(_with_outputs(graph, graph.y), provider.create_state([]))
        feeds = {name: torch.as_tensor(array) for name, array in graph.feeds.items()}
        first, second = executable.run(feeds), executable.run(feeds)
        assert all(torch.equal(first[name], second[name]) for name in first), sample.op_type


def _with_outputs(graph, outputs):
    """The sample's graph with these outputs under names of their own."""
    op = Builder(graph.model.graph)
    for value in outputs:
        copy = op.Identity(value)
        copy.name = f"out.{value.name}"
        graph.model.graph.outputs.append(copy)
    return rebuild(graph.model)
