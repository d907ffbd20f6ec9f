"""An LSTM's weights reach its kernel as PyTorch keeps them, where they come from such parameters, and only there."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
import torch
from torch import nn

from ontrain.capture import capture
from ontrain.graph import Builder, new_model, rebuild
from ontrain.passes.expand_recurrent import ExpandRecurrent
from ontrain.providers import get_provider
from tests.passes.graphs import operators
from tests.training.ortmodule.networks import pair

T, N, D, H = 4, 2, 3, 5


def expanded(model: ir.Model) -> ir.Model:
    return rebuild(ExpandRecurrent().apply(model)[0])


def order_of(model: ir.Model) -> str:
    (layer,) = (node for node in model.graph if node.op_type == "LstmLayer")
    return layer.attributes["order"].as_string()


def weights_by_hand(parts: tuple[int, ...], sizes: list[int]) -> ir.Model:
    """An LSTM whose weights are parts of two parameters, joined in some order."""
    w, r = (
        ir.Value(name=name, shape=ir.Shape([4 * H, size]), type=ir.TensorType(ir.DataType.FLOAT))
        for name, size in (("w", D), ("r", H))
    )
    x = ir.Value(name="x", shape=ir.Shape([T, N, D]), type=ir.TensorType(ir.DataType.FLOAT))
    model = new_model([x, w, r], "layer")
    op = Builder(model.graph)

    def reordered(value: ir.Value) -> ir.Value:
        split = op.Split(value, sizes, axis=0, outputs=len(sizes))
        return op.Reshape(op.Concat(*(split[part] for part in parts), axis=0), [1, 4 * H, -1])

    y, *_ = op.LSTM(x, reordered(w), reordered(r), hidden_size=H, outputs=3)
    model.graph.outputs.append(y)
    return model


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_a_captured_layer_takes_its_parameters_as_they_are(bias, bidirectional):
    layer = nn.LSTM(D, H, bias=bias, bidirectional=bidirectional)
    model = expanded(capture(layer, (torch.randn(T, N, D),), {}).model)
    assert order_of(model) == "ifco"
    assert "Split" not in operators(model)


@pytest.mark.parametrize(
    ("parts", "sizes", "order"),
    [
        ((0, 2, 1), [H, 2 * H, H], "ifco"),
        ((2, 0, 1), [H, 2 * H, H], "iofc"),  # another permutation
        ((0, 1, 2), [H, 2 * H, H], "iofc"),
        ((0, 2, 1), [2 * H, H, H], "iofc"),  # other parts
        ((0, 3, 1, 2), [H, H, H, H], "iofc"),  # the same order, written otherwise: right, if slower
    ],
)
@pytest.mark.parametrize("provider", ["TorchExecutionProvider", "ReferenceExecutionProvider"])
def test_parts_in_any_order_give_the_standards_values(provider, parts, sizes, order, rng):
    model = expanded(weights_by_hand(parts, sizes))
    assert order_of(model) == order
    fed = {
        name: rng.standard_normal(shape).astype(np.float32)
        for name, shape in (("x", (T, N, D)), ("w", (4 * H, D)), ("r", (4 * H, H)))
    }
    cuts = np.cumsum(sizes)[:-1]
    w, r = (np.concatenate([np.split(fed[name], cuts)[part] for part in parts]) for name in ("w", "r"))
    layer = nn.LSTM(D, H, bias=False)
    pytorch = np.r_[0:H, 2 * H : 4 * H, H : 2 * H]  # of the standard's input, output, forget, cell
    with torch.no_grad():
        layer.weight_ih_l0.copy_(torch.tensor(w[pytorch]))
        layer.weight_hh_l0.copy_(torch.tensor(r[pytorch]))
        wanted = layer(torch.tensor(fed["x"]))[0]
    chosen = get_provider(provider)
    (y,) = chosen.compile(model, chosen.create_state([])).run(fed).values()
    torch.testing.assert_close(torch.as_tensor(np.asarray(y))[:, 0], wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("bidirectional", [False, True])
def test_evaluation_by_onnxruntimes_kernel_is_eagers(bidirectional):
    ours, eager = pair(nn.LSTM(D, H, 2, bidirectional=bidirectional).eval())
    x = torch.randn(T, N, D)
    with torch.no_grad():
        torch.testing.assert_close(ours(x), eager(x), rtol=1e-5, atol=1e-6)
