"""The kernels of a provider against plain bodies in onnx's evaluator, sample by sample."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
import torch

from ontrain.graph import Builder, rebuild
from ontrain.providers import get_provider
from ontrain.providers.torch.lowering.registry import find_lowering
from tests.autodiff.graphs import SampleGraph
from tests.autodiff.samples import IDS, SAMPLES

# In double precision onnxruntime has no kernel of these and takes the specification's body, which holds its constants
# in single precision. Its inverse Fourier transforms divide by a length in single precision.
_SINGLE_PRECISION_BODIES = frozenset({
    "DFT", "FastGelu", "Gelu", "GroupNormalization", "HardSwish", "STFT", "Shrink",
})  # fmt: skip
_SINGLE_PRECISION_ON_CUDA = frozenset({"HardSwish"})
"""Whose kernel in ATen holds a sixth in single precision."""


def lowered_in(module):
    """Samples whose operator has its kernel in a file of the torch provider; None: those that run as their bodies."""
    lowerings = [find_lowering(ir.Node(sample.domain, sample.op_type, [])) for sample in SAMPLES]
    files = [None if lowering is None else lowering.__module__.rpartition(".")[2] for lowering in lowerings]
    chosen = [(sample, name) for sample, name, file in zip(SAMPLES, IDS, files, strict=True) if file == module]
    assert chosen
    return pytest.mark.parametrize("sample", [sample for sample, _ in chosen], ids=[name for _, name in chosen])


def compare(sample, rng, name, device="cpu"):
    if sample.op_type == "Dropout" and sample.attributes.get("seed") is not None:
        pytest.skip("each provider draws its own mask; tests/providers/torch/lowering/test_random.py looks at it")
    graph = SampleGraph(sample, sample.draw(rng))
    seeds = graph.seeds(graph.y, rng, "dy")
    grads = [g for g in graph.gradient(graph.y, seeds, graph.wrt) if g is not None]
    # A value that is a constant or an input has no producer to compute it; it needs no test either.
    outputs = list(dict.fromkeys(v for v in (*graph.y, *grads) if v.producer() is not None))
    wanted = graph.evaluator(outputs)()

    model = rebuild(graph.model) if not outputs else with_outputs(graph, outputs)
    provider = get_provider(name, device)
    executable = provider.compile(model, provider.create_state([]))
    results = executable.run({name: torch.as_tensor(array, device=device) for name, array in graph.feeds.items()})

    loose = _SINGLE_PRECISION_BODIES if name.startswith("OnnxRuntime") else _SINGLE_PRECISION_ON_CUDA
    single = (name.startswith("OnnxRuntime") or device == "cuda") and sample.op_type in loose
    tolerance = 1e-9 if sample.dtype == "float64" and not single else 1e-5
    for value, expected in zip(outputs, wanted, strict=True):
        actual = results[f"out.{value.name}"]
        actual = np.asarray(actual.cpu() if isinstance(actual, torch.Tensor) else actual)
        assert actual.dtype == expected.dtype and actual.shape == expected.shape
        np.testing.assert_allclose(actual, expected, rtol=tolerance, atol=tolerance * max(1, np.abs(expected).max()))


def with_outputs(graph, outputs):
    """The sample's graph with these outputs under names of their own."""
    op = Builder(graph.model.graph)
    for value in outputs:
        copy = op.Identity(value)
        copy.name = f"out.{value.name}"
        graph.model.graph.outputs.append(copy)
    return rebuild(graph.model)
