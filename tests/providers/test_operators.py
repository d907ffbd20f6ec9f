"""Every operator and its gradient: the kernels of each provider against plain bodies in onnx's evaluator."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from ontrain import ProviderError
from ontrain.graph import Builder, rebuild
from ontrain.providers import get_provider
from tests.autodiff.graphs import SampleGraph
from tests.autodiff.samples import IDS, SAMPLES

PROVIDERS = ("TorchExecutionProvider", "OnnxRuntimeExecutionProvider")
# In double precision onnxruntime has no kernel of these and takes the specification's body, which holds its constants
# in single precision.
_SINGLE_PRECISION_BODIES = frozenset({"FastGelu", "Gelu", "HardSwish", "Shrink", "GroupNormalization"})


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("sample", SAMPLES, ids=IDS)
def test_native_kernels_equal_the_bodies(sample, rng, provider):
    if provider.startswith("OnnxRuntime") and sample.op_type == "LRN" and sample.attributes["size"] % 2 == 0:
        with pytest.raises(ProviderError, match="cannot run LRN(.|\n)*size_ % 2 == 1"):
            _compare(dataclasses.replace(sample, dtype="float32"), rng, provider)
        return
    try:
        _compare(sample, rng, provider)
    except ProviderError as error:
        # onnxruntime has many kernels in single precision only: then they are compared there.
        assert "has no CPU kernel" in str(error) and sample.dtype == "float64", error
        try:
            _compare(dataclasses.replace(sample, dtype="float32"), rng, provider)
        except ProviderError as again:
            assert "has no CPU kernel" in str(again), again
            pytest.skip(again.reason)


def _compare(sample, rng, name):
    if sample.op_type == "Dropout" and sample.attributes.get("seed") is not None:
        pytest.skip("each provider draws its own mask; tests/providers/test_dropout.py looks at it")
    graph = SampleGraph(sample, sample.draw(rng))
    seeds = graph.seeds(graph.y, rng, "dy")
    grads = [g for g in graph.gradient(graph.y, seeds, graph.wrt) if g is not None]
    # A value that is a constant or an input has no producer to compute it; it needs no test either.
    outputs = list(dict.fromkeys(v for v in (*graph.y, *grads) if v.producer() is not None))
    wanted = graph.evaluator(outputs)()

    model = rebuild(graph.model) if not outputs else _with_outputs(graph, outputs)
    provider = get_provider(name)
    executable = provider.compile(model, provider.create_state([]))
    found = executable.run({name: torch.as_tensor(array) for name, array in graph.feeds.items()})

    single = name.startswith("OnnxRuntime") and sample.op_type in _SINGLE_PRECISION_BODIES
    tolerance = 1e-9 if sample.dtype == "float64" and not single else 1e-5
    for value, expected in zip(outputs, wanted, strict=True):
        actual = np.asarray(found[f"out.{value.name}"])
        assert actual.dtype == expected.dtype and actual.shape == expected.shape
        np.testing.assert_allclose(actual, expected, rtol=tolerance, atol=tolerance * max(1, np.abs(expected).max()))


@pytest.mark.parametrize("name", PROVIDERS)
def test_running_twice_gives_the_same(rng, name):
    for sample in SAMPLES[::10]:
        if name.startswith("OnnxRuntime"):  # which has many kernels in single precision only
            sample = dataclasses.replace(sample, dtype="float32")
        graph = SampleGraph(sample, sample.draw(rng))
        provider = get_provider(name)
        executable = provider.compile(_with_outputs(graph, graph.y), provider.create_state([]))
        feeds = {name: torch.as_tensor(array) for name, array in graph.feeds.items()}
        first, second = executable.run(feeds), executable.run(feeds)
        assert all(np.array_equal(first[name], second[name]) for name in first), sample.op_type


@pytest.mark.parametrize("sample", SAMPLES, ids=IDS)
def test_the_reference_provider_gives_what_torch_gives(sample, rng):
    if sample.op_type == "Dropout":
        pytest.skip("each provider draws its own mask; tests/providers/test_dropout.py looks at it")
    if sample.op_type == "MeanVarianceNormalization":
        sample = dataclasses.replace(sample, dtype="float32")  # its body in the specification has a constant in single
    arrays = sample.draw(rng)
    graph = SampleGraph(sample, arrays)
    provider = get_provider("ReferenceExecutionProvider")
    executable = provider.compile(_with_outputs(graph, graph.y), provider.create_state([]))
    try:
        found = executable.run(graph.feeds).values()
    except NotImplementedError as error:
        assert sample.op_type == "ConvTranspose", error
        pytest.skip("the oracle stops at an output_shape")
    made = sample.twin(*(None if array is None else torch.tensor(array) for array in arrays))
    for actual, expected in zip(found, made if isinstance(made, tuple | list) else [made], strict=False):
        wanted = expected.detach().numpy()
        assert actual.shape == wanted.shape
        # Some of the specification's bodies compute in single precision.
        np.testing.assert_allclose(actual, wanted, rtol=1e-5, atol=1e-5 * max(1, np.abs(wanted).max(initial=0)))


def _with_outputs(graph, outputs):
    """The sample's graph with these outputs under names of their own."""
    op = Builder(graph.model.graph)
    for value in outputs:
        copy = op.Identity(value)
        copy.name = f"out.{value.name}"
        graph.model.graph.outputs.append(copy)
    return rebuild(graph.model)
