"""Attention of packed sequences: every way to run it gives what each sequence by itself gives."""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir
import pytest
import torch
from hypothesis import given, strategies as st
from torch.nn import functional as F

from ontrain.graph import Builder, new_model
from ontrain.providers import get_provider
from ontrain.providers.torch.lowering import attention
from tests.providers.torch.lowering.test_attention_cuda import kernel
from tests.providers.torch.packed_kernels import packed_kernels

H, E = 2, 8
SCALE = 0.3
DTYPES = {
    torch.float64: ir.DataType.DOUBLE, torch.float32: ir.DataType.FLOAT, torch.float16: ir.DataType.FLOAT16,
    torch.bfloat16: ir.DataType.BFLOAT16,
}  # fmt: skip


def graph(rows: int, count: int, longest: int, dtype: torch.dtype, dropout: float = 0.0) -> ir.Model:
    inputs = [
        ir.Value(name=name, shape=ir.Shape([1, H, rows, E]), type=ir.TensorType(DTYPES[dtype]))
        for name in ("q", "k", "v", "dy")
    ]
    bounds = ir.Value(name="bounds", shape=ir.Shape([count + 1]), type=ir.TensorType(ir.DataType.INT32))
    op = Builder(new_model([*inputs, bounds], "packed").graph)
    q, k, v, dy = inputs
    options = {"scale": SCALE, "dropout": dropout}
    y, probs, mask = op.composite("Attention", q, k, v, None, None, bounds, outputs=3, longest=longest, **options)
    grads = op.composite("AttentionGrad", dy, q, k, v, probs, mask, outputs=3, **options)
    op.graph.outputs.extend([y, *grads])
    return ir.Model(op.graph, ir_version=10)


def feeds(lengths: list[int], dtype: torch.dtype) -> dict[str, torch.Tensor]:
    draws = torch.Generator().manual_seed(sum(lengths))
    shape = 1, H, sum(lengths), E
    tensors = {name: torch.randn(shape, generator=draws).to(dtype) for name in ("q", "k", "v", "dy")}
    return {**tensors, "bounds": torch.tensor([0, *np.cumsum(lengths)], dtype=torch.int32)}


def apart(given_: dict[str, torch.Tensor], lengths: list[int]) -> list[torch.Tensor]:
    """The oracle: torch's attention of each sequence, in double precision."""
    inputs = [given_[name].double().requires_grad_() for name in ("q", "k", "v")]
    parts = zip(*(tensor.split(lengths, 2) for tensor in inputs), strict=True)
    y = torch.cat([F.scaled_dot_product_attention(*part, scale=SCALE) for part in parts], 2)
    y.backward(given_["dy"].double())
    return [y.detach(), *(tensor.grad for tensor in inputs)]


def run(provider: str, lengths: list[int], dtype: torch.dtype, device: str = "cpu", **options) -> list[torch.Tensor]:
    model = graph(sum(lengths), len(lengths), max(lengths), dtype, **options)
    runtime = get_provider(provider, device)
    given_ = {name: tensor.to(device) for name, tensor in feeds(lengths, dtype).items()}
    results = runtime.compile(model, runtime.create_state([])).run(given_, rng=(1, 2))
    return [torch.as_tensor(results[value.name]).double().cpu() for value in model.graph.outputs]


def check(results: list[torch.Tensor], lengths: list[int], dtype: torch.dtype) -> None:
    tolerance = {torch.float64: 1e-12, torch.float32: 2e-5}.get(dtype, 3e-2)
    for ours, true in zip(results, apart(feeds(lengths, dtype), lengths), strict=True):
        torch.testing.assert_close(ours, true, rtol=tolerance, atol=tolerance)


LENGTHS = st.lists(st.integers(0, 9), min_size=1, max_size=6).filter(any)
PROVIDERS = ["TorchExecutionProvider", "OnnxRuntimeExecutionProvider", "ReferenceExecutionProvider"]


@pytest.mark.parametrize("provider", PROVIDERS)
def test_sequences_do_not_see_one_another(provider):
    for lengths in ([5], [3, 4], [1, 6, 1], [2, 0, 3], [0, 4, 0, 0]):
        check(run(provider, lengths, torch.float32), lengths, torch.float32)


@given(LENGTHS)
def test_any_lengths_give_what_each_gives(lengths):
    check(run("TorchExecutionProvider", lengths, torch.float64), lengths, torch.float64)


@pytest.fixture
def _fused(monkeypatch):
    monkeypatch.setattr(attention, "_has_fused", lambda device: True)
    monkeypatch.setattr(attention, "runs_flash", lambda device: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    with packed_kernels():
        yield


@pytest.mark.usefixtures("_fused")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@given(LENGTHS)
def test_kernels_are_given_what_they_are_documented_to_take(dtype, lengths):
    check(run("TorchExecutionProvider", lengths, dtype), lengths, dtype)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_a_gpu_gives_what_each_sequence_gives(dtype):
    for lengths in ([5], [3, 4], [128, 1, 77, 64], [2, 0, 3, 0]):
        check(run("TorchExecutionProvider", lengths, dtype, "cuda"), lengths, dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_a_kernel_that_draws_other_masks_going_backward_is_not_chosen(dtype, dropout):
    """ATen's efficient kernel does so for packed sequences."""
    flash = "flash apart" if dtype == torch.bfloat16 else None if dropout else "efficient apart"
    assert kernel(graph(5, 2, 3, dtype, dropout)) == flash


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_dropout_on_a_gpu_repeats_and_its_gradient_is_of_what_was_kept(dtype):
    lengths = [33, 64, 7]
    first, second = (run("TorchExecutionProvider", lengths, dtype, "cuda", dropout=0.4) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    # y is linear in v: what dy weighs of y is what v weighs of its adjoint.
    given_ = feeds(lengths, dtype)
    left, right = ((a * b.double()).sum() for a, b in ((first[0], given_["dy"]), (first[3], given_["v"])))
    assert math.isclose(left, right, rel_tol=3e-2, abs_tol=0.5)


def test_dropout_is_drawn_within_sequences():
    lengths = [3, 4]
    results = run("TorchExecutionProvider", lengths, torch.float64, dropout=0.5)
    given_ = feeds(lengths, torch.float64)
    assert math.isclose((results[0] * given_["dy"]).sum(), (results[3] * given_["v"]).sum(), rel_tol=1e-9)
    assert not torch.allclose(results[0], apart(given_, lengths)[0])
