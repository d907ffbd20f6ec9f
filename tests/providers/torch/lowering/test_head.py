"""Head and loss in chunks: kernels give what the operators' bodies give, gradients included."""

from __future__ import annotations

import math

import onnx_ir as ir
import pytest
import torch
from torch.nn import functional as F

from ontrain.graph import Builder, new_model
from ontrain.providers import get_provider
from ontrain.providers.torch.lowering import head
from tests.providers.bodies import compare, lowered_in


@lowered_in("head")
def test_kernels_equal_the_bodies(sample, rng):
    compare(sample, rng, "TorchExecutionProvider")


ROWS, WIDTH = 12, 8


def gradients(classes, dtype, *, transposed, bias, logits_bytes):
    """The loss, and the gradients of hidden states, weight and bias, beside their oracles in double precision."""
    draws = torch.Generator().manual_seed(classes)
    shapes = {"h": (ROWS, WIDTH), "w": (classes, WIDTH) if transposed else (WIDTH, classes), "b": (classes,)}
    feeds = {name: torch.randn(shape, generator=draws).to(dtype) for name, shape in shapes.items()}
    labels = torch.randint(0, classes, (ROWS,), generator=draws)
    labels[::5] = -100
    kind = {torch.bfloat16: ir.DataType.BFLOAT16, torch.float32: ir.DataType.FLOAT}[dtype]
    if not bias:
        del feeds["b"]
    values = [ir.Value(name=n, shape=ir.Shape(t.shape), type=ir.TensorType(kind)) for n, t in feeds.items()]
    target = ir.Value(name="labels", shape=ir.Shape([ROWS]), type=ir.TensorType(ir.DataType.INT64))
    op = Builder(new_model([*values, target], "head").graph)
    results = op.composite(
        "LinearCrossEntropy", values[0], target, *values[1:], transB=int(transposed), reduction="mean",
        ignore_index=-100, outputs=len(values) + 1,
    )  # fmt: skip
    op.graph.outputs.extend(results)
    provider = get_provider("TorchExecutionProvider", "cpu", {"logits_bytes": logits_bytes})
    model = ir.Model(op.graph, ir_version=10)
    executable = provider.compile(model, provider.create_state([]))
    outputs = executable.run({**feeds, "labels": labels})
    exact = {name: tensor.double().requires_grad_() for name, tensor in feeds.items()}
    scores = exact["h"] @ (exact["w"].t() if transposed else exact["w"]) + exact.get("b", 0.0)
    loss = F.cross_entropy(scores, labels)
    loss.backward()
    computed = [outputs[value.name] for value in results]
    return computed, [loss.detach(), *(tensor.grad for tensor in exact.values())]


@pytest.mark.parametrize("chunks", [1, 3])
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
@pytest.mark.parametrize("transposed", [True, False], ids=["rows", "columns"])
@pytest.mark.parametrize("classes", [37, 50, 64])
def test_columns_to_spare_change_nothing(classes, transposed, bias, chunks, monkeypatch):
    """A GPU multiplies aligned matrices: weights with rows of zeros, whose scores are no candidates."""
    options = {"transposed": transposed, "bias": bias, "logits_bytes": ROWS * 64 * 4 // chunks}
    plain, _ = gradients(classes, torch.bfloat16, **options)
    asked = []
    monkeypatch.setattr(head, "_wants_aligned", lambda device, classes: asked.append(classes) or classes % 8 != 0)
    aligned, exact = gradients(classes, torch.bfloat16, **options)
    assert asked == [classes]
    for result, before, oracle in zip(aligned, plain, exact, strict=True):
        assert result.shape == oracle.shape and torch.isfinite(result).all()
        scale = max(float(oracle.abs().max()), 1e-3)
        torch.testing.assert_close(result.double(), oracle, rtol=0, atol=2e-2 * scale)
        torch.testing.assert_close(result, before, rtol=1e-2, atol=1e-2 * scale)


def test_a_gpu_aligns_what_is_not_and_a_cpu_nothing():
    gpu, cpu = torch.device("cuda"), torch.device("cpu")
    assert [head._wants_aligned(gpu, classes) for classes in (50257, 30522, 50304, 1000)] == [True, True, False, False]
    assert not any(head._wants_aligned(cpu, classes) for classes in (50257, 30522))


def test_chunks_on_a_gpu_are_larger(monkeypatch):
    from ontrain.providers.torch.settings import GPU_LOGITS_BYTES, LOGITS_BYTES, Settings

    monkeypatch.delenv("ONTRAIN_LOGITS_BYTES", raising=False)
    sizes = [Settings.chosen(None, None, device=device).logits_bytes for device in ("cpu", "cuda")]
    assert sizes == [LOGITS_BYTES, GPU_LOGITS_BYTES] and math.prod(sizes) > 0
    assert Settings.chosen(1 << 20, None, device="cuda").logits_bytes == 1 << 20
