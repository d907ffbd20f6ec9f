"""Every operator and its gradient: the kernels of each provider against plain bodies in onnx's evaluator."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from ontrain import ProviderError
from ontrain.providers import get_provider
from tests.autodiff.graphs import SampleGraph
from tests.autodiff.samples import IDS, SAMPLES
from tests.providers.bodies import compare, lowered_in, with_outputs

PROVIDERS = ("TorchExecutionProvider", "OnnxRuntimeExecutionProvider")


@lowered_in(None)
def test_bodies_run_on_the_torch_provider(sample, rng):
    compare(sample, rng, "TorchExecutionProvider")  # its kernels are looked at in tests/providers/torch/lowering


@pytest.mark.sampled(4)
@pytest.mark.parametrize("provider", [name for name in PROVIDERS if name != "TorchExecutionProvider"])
@pytest.mark.parametrize("sample", SAMPLES, ids=IDS)
def test_native_kernels_equal_the_bodies(sample, rng, provider):
    if sample.op_type == "LRN" and sample.attributes["size"] % 2 == 0:
        with pytest.raises(ProviderError, match="cannot run LRN(.|\n)*size_ % 2 == 1"):
            compare(dataclasses.replace(sample, dtype="float32"), rng, provider)
        return
    try:
        compare(sample, rng, provider)
    except ProviderError as error:
        # onnxruntime has many kernels in single precision only: then they are compared there.
        assert "has no CPU kernel" in str(error) and sample.dtype == "float64", error
        try:
            compare(dataclasses.replace(sample, dtype="float32"), rng, provider)
        except ProviderError as again:
            assert "has no CPU kernel" in str(again), again
            pytest.skip(again.reason)


@pytest.mark.parametrize("name", PROVIDERS)
def test_running_twice_gives_the_same(rng, name):
    for sample in SAMPLES[::10]:
        stock = name.startswith("OnnxRuntime")
        if stock:  # which has many kernels in single precision only
            sample = dataclasses.replace(sample, dtype="float32")
        graph = SampleGraph(sample, sample.draw(rng))
        provider = get_provider(name)
        try:
            executable = provider.compile(with_outputs(graph, graph.y), provider.create_state([]))
        except ProviderError as error:
            assert stock and "size_ % 2 == 1" in str(error), error  # of LRN over an even number of channels
            continue
        feeds = {name: torch.as_tensor(array) for name, array in graph.feeds.items()}
        first, second = executable.run(feeds), executable.run(feeds)
        assert all(np.array_equal(first[name], second[name]) for name in first), sample.op_type


@pytest.mark.parametrize("sample", SAMPLES, ids=IDS)
@pytest.mark.sampled(2)
def test_the_reference_provider_gives_what_torch_gives(sample, rng):
    if sample.op_type == "Dropout":
        pytest.skip("each provider draws its own mask; tests/providers/torch/lowering/test_random.py looks at it")
    if sample.op_type == "MeanVarianceNormalization":
        sample = dataclasses.replace(sample, dtype="float32")  # its body in the specification has a constant in single
    arrays = sample.draw(rng)
    graph = SampleGraph(sample, arrays)
    provider = get_provider("ReferenceExecutionProvider")
    executable = provider.compile(with_outputs(graph, graph.y), provider.create_state([]))
    try:
        results = executable.run(graph.feeds).values()
    except NotImplementedError as error:
        assert sample.op_type == "ConvTranspose", error
        pytest.skip("the oracle stops at an output_shape")
    expected_results = sample.twin(*(None if array is None else torch.tensor(array) for array in arrays))
    for actual, expected in zip(
        results, expected_results if isinstance(expected_results, tuple | list) else [expected_results], strict=False
    ):
        wanted = expected.detach().numpy()
        assert actual.shape == wanted.shape
        # Some of the specification's bodies compute in single precision.
        np.testing.assert_allclose(actual, wanted, rtol=1e-5, atol=1e-5 * max(1, np.abs(wanted).max(initial=0)))
