"""A mask that all sequences share is kept once, and one that differs stays."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
import torch

from ontrain.graph import Builder, new_model, static_dims
from ontrain.passes.share_masks import ShareMasks
from ontrain.providers import get_provider

B, H, L, E = 3, 2, 5, 4
LOW = -1e30


def attention(make, *, more=()):
    """Attention whose bias `make(op, *more)` emits."""
    values = [
        ir.Value(name=name, shape=ir.Shape([B, H, L, E]), type=ir.TensorType(ir.DataType.DOUBLE)) for name in "qkv"
    ]
    added = [ir.Value(name=n, shape=ir.Shape(s), type=ir.TensorType(ir.DataType.DOUBLE)) for n, s in more]
    op = Builder(new_model([*values, *added], "attention").graph)
    with op.arithmetic():
        bias = make(op, *added)
    y, _, _ = op.composite("Attention", *values, bias, scale=0.5, outputs=3)
    op.graph.outputs.append(y)
    return ir.Model(op.graph, ir_version=10)


def compute(model, feeds):
    provider = get_provider("TorchExecutionProvider", "cpu")
    (y,) = provider.compile(model, provider.create_state([])).run(feeds).values()
    return y


def bias_of(model):
    (node,) = [node for node in model.graph if node.op_type == "Attention"]
    return node.inputs[3]


def causal():
    return np.broadcast_to(np.tril(np.ones((L, L), bool)), (B, 1, L, L))


def unfolded(monkeypatch):
    """Results of more than a few elements are computed each step, as those of large constants are."""
    import ontrain.graph.fold as fold

    monkeypatch.setattr(fold, "_LIMIT_BYTES", L * L * 8 + 1)


def of_sequences(op):
    return op.Max(op.Where(causal(), np.float64(0), np.float64(-np.inf)), np.float64(LOW))


def of_heads(op):
    slopes = np.arange(1, H + 1, dtype=np.float64)[None, :, None, None]
    return op.Where(causal(), np.broadcast_to(slopes, (B, H, 1, 1)) * np.arange(L), np.float64(LOW))


def expanded(op):
    seen = op.Expand(np.tril(np.ones((L, L), bool)), np.array([B, H, L, L]))
    return op.Where(seen, np.float64(0), np.float64(LOW))


def of_each(op):
    seen = causal() & (np.arange(L) < np.array([5, 3, 4])[:, None])[:, None, None, :]
    return op.Max(op.Where(seen, np.float64(0), np.float64(-np.inf)), np.float64(LOW))


@pytest.mark.parametrize(
    ("make", "shape"),
    [(of_sequences, (1, 1, L, L)), (expanded, (1, 1, L, L)), (of_heads, (1, H, L, L)), (of_each, (B, 1, L, L))],
)
@pytest.mark.parametrize("large", [True, False])
def test_what_repeats_is_kept_once(make, shape, large, monkeypatch):
    if large:
        unfolded(monkeypatch)
    model = attention(make)
    assert (bias_of(model).const_value is None) == large
    shared, count = ShareMasks().apply(model)
    assert static_dims(bias_of(shared)) == shape
    assert count == (shape[0] == 1)
    if shape == (1, 1, L, L):
        assert bias_of(shared).const_value is not None
    feeds = {name: torch.randn(B, H, L, E, dtype=torch.float64) for name in "qkv"}
    torch.testing.assert_close(compute(shared, feeds), compute(model, feeds), rtol=0, atol=1e-13)


def test_what_the_batch_says_stays():
    model = attention(lambda op, fed: fed + op.const(np.zeros((B, 1, L, L))), more=[("fed", (B, 1, 1, L))])
    shared, count = ShareMasks().apply(model)
    assert count == 0 and shared is model or static_dims(bias_of(shared)) == (B, 1, L, L)


def test_one_mask_of_two_attentions_is_made_once(monkeypatch):
    unfolded(monkeypatch)
    model = attention(of_sequences)
    graph = model.graph
    (node,) = [node for node in graph if node.op_type == "Attention"]
    op = Builder(graph)
    y, _, _ = op.composite("Attention", node.outputs[0], *node.inputs[1:4], scale=0.5, outputs=3)
    graph.outputs[:] = [y]
    shared, count = ShareMasks().apply(model)
    biases = {node.inputs[3] for node in shared.graph if node.op_type == "Attention"}
    assert count == 2 and len(biases) == 1
