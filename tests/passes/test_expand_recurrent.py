"""A recurrent layer of the standard becomes a loop that computes the same; all else stays."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
import torch

from ontrain.graph import Builder, new_model, rebuild
from ontrain.passes.expand_recurrent import ExpandRecurrent
from ontrain.passes.serving import Serving, serve
from ontrain.providers import get_provider
from tests.passes.graphs import graph, operators

L, N, D, H = 4, 2, 3, 5


def test_other_operators_stay():
    rewritten, changed = ExpandRecurrent().apply(graph(lambda op, x: op.Tanh(op.Exp(x)), x=[3]))
    assert changed == 0 and operators(rewritten) == ["Exp", "Tanh"]


@pytest.mark.parametrize(("op_type", "module", "gates"), [("RNN", torch.nn.RNN, 1), ("GRU", torch.nn.GRU, 3)])
def test_a_layer_becomes_a_loop_with_torchs_values(op_type, module, gates, rng):
    x = ir.Value(name="x", shape=ir.Shape([L, N, D]), type=ir.TensorType(ir.DataType.FLOAT))
    model = new_model([x], "layer")
    op = Builder(model.graph)
    weights = [rng.standard_normal((1, gates * H, size)).astype(np.float32) for size in (D, H)]
    bias = np.concatenate([rng.standard_normal((1, gates * H)), np.zeros((1, gates * H))], 1).astype(np.float32)
    named = {"linear_before_reset": 1} if op_type == "GRU" else {}
    y, _ = getattr(op, op_type)(x, *map(op.const, (*weights, bias)), hidden_size=H, outputs=2, **named)
    model.graph.outputs.append(y)
    rewritten, changed = ExpandRecurrent().apply(model)
    rewritten = rebuild(rewritten)
    assert changed == 1 and op_type not in operators(rewritten)

    layer = module(D, H)
    order = np.r_[H : 2 * H, 0:H, 2 * H : 3 * H] if op_type == "GRU" else np.arange(H)  # ONNX: update gate first
    with torch.no_grad():
        for name, array in zip(("weight_ih_l0", "weight_hh_l0"), weights, strict=True):
            getattr(layer, name).copy_(torch.tensor(array[0][order]))
        layer.bias_ih_l0.copy_(torch.tensor(bias[0, : gates * H][order]))
        layer.bias_hh_l0.zero_()
        fed = rng.standard_normal((L, N, D)).astype(np.float32)
        wanted = layer(torch.tensor(fed))[0]
    provider = get_provider("TorchExecutionProvider")
    (result,) = provider.compile(rewritten, provider.create_state([])).run({"x": torch.tensor(fed)}).values()
    torch.testing.assert_close(torch.as_tensor(np.asarray(result))[:, 0], wanted, rtol=1e-5, atol=1e-6)


def test_a_served_graph_whose_layers_stay_is_not_rebuilt():
    def layer(op, x, w, r):
        return op.GRU(x, w, r, hidden_size=H, outputs=2)[0]

    model = graph(layer, x=[L, N, D], w=[1, 3 * H, D], r=[1, 3 * H, H])
    serve(model, Serving())
    assert ExpandRecurrent().apply(model) == (model, 0)


@pytest.mark.parametrize(("batch", "domain"), [(1, ""), (2, "ontrain")])
def test_a_large_lstm_of_one_sequence_stays_where_it_is_served(batch, domain):
    def layer(op, x, w, r):
        return op.LSTM(x, w, r, hidden_size=64, outputs=3)[0]

    model = graph(layer, x=[200, batch, 64], w=[1, 256, 64], r=[1, 256, 64])
    serve(model, Serving())
    rewritten, _ = ExpandRecurrent().apply(model)
    assert [node.domain for node in rewritten.graph if "Lstm" in node.op_type or "LSTM" in node.op_type] == [domain]
