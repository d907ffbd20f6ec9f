"""Which of ATen's fused kernels an attention on a GPU runs on, and that it gives what the formula says."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
import torch

from ontrain.graph import Builder, new_model
from ontrain.providers import get_provider
from ontrain.providers.torch.emitter import Emitter
from ontrain.providers.torch.lowering.attention_cuda import kernel_for, lower_fused, lower_fused_grad
from ontrain.providers.torch.placement import Placement

B, H, L, E = 2, 4, 64, 32
SCALE = 0.25
DTYPES = {"float32": ir.DataType.FLOAT, "float16": ir.DataType.FLOAT16, "bfloat16": ir.DataType.BFLOAT16}


def causal(length: int = L) -> np.ndarray:
    return np.triu(np.full((length, length), np.finfo(np.float32).min, np.float32), 1)


def graph(
    dtype: ir.DataType, *, bias: np.ndarray | None = None, fed: tuple[int, ...] | None = None, dropout: float = 0.0,
    length: int = L, keys: int = L, width: int = E, gradients: int = 3, again: bool = False,
) -> ir.Model:  # fmt: skip
    """An attention and its gradient, whose bias is a constant or fed; `again` computes it twice."""

    def value(name: str, *shape: int) -> ir.Value:
        return ir.Value(name=name, shape=ir.Shape(shape), type=ir.TensorType(dtype))

    q, dy = value("q", B, H, length, width), value("dy", B, H, length, width)
    k, v = value("k", B, H, keys, width), value("v", B, H, keys, width)
    added = value("bias", *fed) if fed is not None else None
    op = Builder(new_model([value for value in (q, k, v, dy, added) if value is not None], "attention").graph)
    if bias is not None:
        added = op.const(bias, dtype)
    options = {"scale": SCALE, "dropout": dropout}
    y, probs, mask = op.composite("Attention", q, k, v, added, outputs=3, **options)
    if again:
        _, probs, _ = op.composite("Attention", q, k, v, added, mask, outputs=3, **options)
    grads = op.composite("AttentionGrad", dy, q, k, v, probs, mask, outputs=gradients, **options)
    op.graph.outputs.extend([y, *grads])
    return ir.Model(op.graph, ir_version=10)


def kernel(model: ir.Model, which: int = 0, *, flash: bool = True) -> str | None:
    nodes = [node for node in model.graph if node.op_type == "Attention"]
    e = Emitter(torch.device("cpu"))
    for value in model.graph.inputs:
        e.out(value)
    bufs = [e.value(value) if value is not None else None for value in (*nodes[which].inputs, None)[:4]]
    return kernel_for(nodes[which], *bufs, flash=flash)


half, full = DTYPES["bfloat16"], DTYPES["float32"]
CHOICES = {
    "half precision": (graph(half), "flash"),
    "float16": (graph(DTYPES["float16"]), "flash"),
    "dropout": (graph(half, dropout=0.1), "flash"),
    "a causal constant": (graph(half, bias=causal()), "causal flash"),
    "a causal constant of each sequence": (graph(half, bias=np.broadcast_to(causal(), (B, 1, L, L))), "causal flash"),
    "a constant that hides all but the diagonal": (graph(half, bias=np.where(np.eye(L), 0, -1e30)), "efficient"),
    "a causal constant with something added": (graph(half, bias=causal() + 1), "efficient"),
    "a mask that is fed": (graph(half, fed=(B, 1, 1, L)), "efficient"),
    "single precision": (graph(full), "efficient"),
    "single precision, causal": (graph(full, bias=causal()), "efficient"),
    "double precision": (graph(ir.DataType.DOUBLE), None),
    "a mask of an odd number of keys": (graph(half, fed=(B, 1, 1, 37), keys=37), None),
    "an odd head": (graph(half, width=36), None),
    "a wide head": (graph(half, width=512), "efficient"),
    "an adjoint of the bias": (graph(half, fed=(B, H, L, L), gradients=4), None),
    "dropout that is applied again": (graph(half, dropout=0.1, again=True), None),
}


@pytest.mark.parametrize("name", CHOICES)
def test_the_kernel_that_fits_is_chosen(name):
    model, wanted = CHOICES[name]
    assert kernel(model) == wanted


def test_a_device_that_runs_no_flash_attention_takes_the_other_kernel():
    for name, wanted in (("half precision", "efficient"), ("a causal constant", "efficient"), ("an odd head", None)):
        model, _ = CHOICES[name]
        assert kernel(model, flash=False) == wanted


def test_a_second_computation_that_is_given_the_mask_runs_on_products():
    assert kernel(graph(half, dropout=0.1, again=True), 1) is None


@pytest.mark.parametrize("name", ["flash", "efficient"])
def test_adjoints_with_a_place_come_from_the_kernel_and_from_nowhere_else(name):
    forward, backward = graph(half).graph
    places = [Emitter(torch.device("cpu")).new((B, H, L, E), torch.bfloat16) for _ in backward.outputs]
    e = Emitter(torch.device("cpu"), Placement(pins=dict(zip(backward.outputs, places, strict=True))))
    for value in (*forward.inputs[:3], backward.inputs[0]):
        e.out(value)
    lower_fused(e, forward, name, *(e.value(value) for value in forward.inputs[:3]), None)
    lower_fused_grad(e, backward, e.kept(backward.inputs[4]))
    *before, last = e.program
    assert last.results == places and not any(place in instruction.writes for instruction in before for place in places)


def feeds(bias: tuple[int, ...] | None, dtype: torch.dtype, device: str) -> dict[str, torch.Tensor]:
    draws = torch.Generator().manual_seed(1)
    tensors = {name: torch.randn(B, H, L, E, generator=draws) for name in ("q", "k", "v", "dy")}
    if bias is not None:
        tensors["bias"] = torch.where(torch.rand(bias, generator=draws) < 0.3, -1e4, 0.0)
    return {name: tensor.to(dtype).to(device) for name, tensor in tensors.items()}


def run(model: ir.Model, tensors: dict[str, torch.Tensor], device: str, rng=(1, 2)) -> list[torch.Tensor]:
    provider = get_provider("TorchExecutionProvider", device)
    results = provider.compile(model, provider.create_state([])).run(tensors, rng=rng)
    return [results[value.name].double().cpu() for value in model.graph.outputs]


GPU = {
    "flash": {}, "causal flash": {"bias": causal()}, "efficient": {"fed": (B, 1, 1, L)},
    "efficient, full": {"fed": (B, H, L, L)},
}  # fmt: skip


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", GPU)
def test_a_gpu_gives_what_the_formula_says(name, dtype):
    tensors = feeds(GPU[name].get("fed"), getattr(torch, dtype), "cpu")
    results = run(graph(DTYPES[dtype], **GPU[name]), {n: t.cuda() for n, t in tensors.items()}, "cuda")
    wide = {n: t.double() for n, t in tensors.items()}
    wanted = run(graph(ir.DataType.DOUBLE, **GPU[name]), wide, "cpu")
    for ours, true in zip(results, wanted, strict=True):
        torch.testing.assert_close(ours, true, rtol=2e-2, atol=1e-3 if dtype == "float32" else 3e-2)


@pytest.mark.gpu
@pytest.mark.parametrize("name", GPU)
def test_dropout_inside_of_a_kernel_repeats_and_leaves_the_devices_generator_alone(name):
    tensors = feeds(GPU[name].get("fed"), torch.bfloat16, "cuda")
    model = graph(half, dropout=0.3, **GPU[name])
    torch.manual_seed(5)
    before = torch.cuda.get_rng_state()
    first, same, other = (run(model, tensors, "cuda", rng) for rng in ((1, 2), (1, 2), (1, 3)))
    assert torch.equal(torch.cuda.get_rng_state(), before)
    assert all(torch.equal(a, b) for a, b in zip(first, same, strict=True))
    assert not torch.equal(first[0], other[0])


@pytest.mark.gpu
@pytest.mark.parametrize("name", GPU)
def test_dropout_going_backward_is_that_of_going_forward(name):
    """y is linear in v, and its adjoint the transposed map: ⟨dy, y(v)⟩ = ⟨dv, v⟩ for the mask that was drawn."""
    tensors = feeds(GPU[name].get("fed"), torch.bfloat16, "cuda")
    y, _, _, dv = run(graph(half, dropout=0.3, **GPU[name]), tensors, "cuda")
    dy, v = (tensors[name].double().cpu() for name in ("dy", "v"))
    torch.testing.assert_close((dy * y).sum(), (dv * v).sum(), rtol=2e-2, atol=1.0)
