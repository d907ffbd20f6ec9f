"""Fourier transforms: fast ones give what products with matrices give, in the precisions that PyTorch has them for."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
import torch

from ontrain.graph import Builder, new_model
from ontrain.providers import get_provider
from tests.providers.bodies import compare, lowered_in


@lowered_in("fourier")
def test_kernels_equal_the_bodies(sample, rng):
    compare(sample, rng, "TorchExecutionProvider")


@pytest.mark.parametrize("kind", [ir.DataType.FLOAT16, ir.DataType.FLOAT, ir.DataType.DOUBLE])
@pytest.mark.parametrize(("inverse", "onesided", "parts"), [(0, 0, 1), (0, 0, 2), (0, 1, 1), (1, 0, 2), (1, 1, 2)])
@pytest.mark.parametrize("length", [None, 6, 12])
def test_any_length_precision_and_direction(kind, inverse, onesided, parts, length, rng):
    x = rng.standard_normal((2, 9, 3, parts)).astype(kind.numpy())
    value = ir.Value(name="x", shape=ir.Shape(x.shape), type=ir.TensorType(kind))
    op = Builder(new_model([value], "transform").graph)
    size = None if length is None else op.const(np.array(length))
    op.graph.outputs.append(op.DFT(value, size, op.const(np.array(1)), inverse=inverse, onesided=onesided))
    model = ir.Model(op.graph, ir_version=10)
    results = []
    for name in ("TorchExecutionProvider", "ReferenceExecutionProvider"):
        provider = get_provider(name, "cpu")
        feeds = {"x": torch.from_numpy(x)}
        (y,) = provider.compile(model, provider.create_state([])).run(feeds).values()
        results.append(torch.as_tensor(y).double())
    z = x.astype(np.float64)[..., 0] if parts == 1 else x.astype(np.float64) @ np.array([1, 1j])
    whole = {(0, 0): np.fft.fft, (0, 1): np.fft.rfft, (1, 0): np.fft.ifft, (1, 1): np.fft.irfft}
    wanted = whole[inverse, onesided](z, length, axis=1)
    wanted = wanted[..., None] if wanted.dtype.kind == "f" else np.stack([wanted.real, wanted.imag], -1)
    tolerance = {ir.DataType.FLOAT16: 2e-2, ir.DataType.FLOAT: 1e-5, ir.DataType.DOUBLE: 1e-12}[kind]
    for result in results:
        np.testing.assert_allclose(result, wanted, rtol=tolerance, atol=tolerance * 4)
