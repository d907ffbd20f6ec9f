"""Layers of long short-term memory by oneDNN's kernel, forward and backward, as eager's."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
import torch
from torch import nn

from ontrain.graph import Builder, new_model
from ontrain.providers import get_provider
from ontrain.providers.torch.lowering import recurrent
from tests.autodiff.samples.recurrent import LAYERS
from tests.training.ortmodule.networks import assert_same_gradients, pair


class Layer(nn.Module):
    """An LSTM whose outputs and last states all count."""

    def __init__(self, bias: bool = True, bidirectional: bool = False, layers: int = 1) -> None:
        super().__init__()
        self.cells = nn.LSTM(3, 4, layers, bias=bias, bidirectional=bidirectional)

    def forward(self, x, *states):
        y, (h, c) = self.cells(x, states or None)
        return y.sin().sum() + (h * c).sum()


class Ends(Layer):
    """An LSTM of which only the last cells count."""

    def forward(self, x, *states):
        return self.cells(x, states or None)[1][1].square().sum()


def check(module: nn.Module, steps: int, states: int = 0, dtype: torch.dtype = torch.float32) -> None:
    ours, eager = pair(module.to(dtype))
    results = []
    for network in (ours, eager):
        torch.manual_seed(1)
        x = torch.randn(steps, 2, 3, dtype=dtype, requires_grad=True)
        initial = [torch.randn(states, 2, 4, dtype=dtype, requires_grad=True) for _ in range(2)] if states else []
        loss = network(x, *initial)
        loss.backward()
        results.append([loss.detach(), x.grad, *(state.grad for state in initial)])
    torch.testing.assert_close(*results, rtol=1e-5, atol=1e-6)
    assert_same_gradients(ours, eager, rtol=1e-5, atol=1e-6)


@pytest.mark.sampled(5)  # five cases with each bias, direction, number of steps and dtype among them
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("steps", [1, 7, 40])
@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_a_layer(bias, bidirectional, steps, dtype):
    check(Layer(bias, bidirectional), steps, 1 + bidirectional, dtype)
    check(Layer(bias, bidirectional, layers=2), steps, dtype=dtype)


def test_the_last_states_alone():
    check(Ends(bidirectional=True), 5, 2)


def test_batches_of_no_sequence_and_of_no_step_run_by_the_body():
    ours, eager = pair(nn.LSTM(3, 4))
    x = torch.randn(5, 0, 3)
    torch.testing.assert_close(ours(x)[0], eager(x)[0])


def test_two_forwards_before_the_first_backward_keep_what_they_need_apart():
    ours, eager = pair(Layer())
    xs = [torch.randn(6, 2, 3), torch.randn(6, 2, 3)]
    for network in (ours, eager):
        first, second = (network(x) for x in xs)
        first.backward()
        second.backward()
    assert_same_gradients(ours, eager, rtol=1e-5, atol=1e-6)


def test_a_plan_runs_with_another_number_of_threads():
    ours, eager = pair(Layer(bidirectional=True))
    x, threads = torch.randn(9, 2, 3), torch.get_num_threads()
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            for network in (ours, eager):
                network(x).backward()
    finally:
        torch.set_num_threads(threads)
    assert_same_gradients(ours, eager, rtol=1e-5, atol=1e-6)


def test_forward_alone_keeps_nothing():
    ours, eager = pair(Layer(bidirectional=True))
    x = torch.randn(6, 2, 3)
    with torch.no_grad():
        torch.testing.assert_close(ours(x), eager(x), rtol=1e-5, atol=1e-6)
    ours.eval(), eager.eval()
    with torch.inference_mode():
        torch.testing.assert_close(ours(x), eager(x), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("sample", LAYERS)
def test_gates_and_cells_that_are_read_are_computed(sample, rng):
    arrays = [array.astype(np.float32) for array in sample.draw(rng)]
    values = [
        ir.Value(name=f"x{i}", shape=ir.Shape(array.shape), type=ir.TensorType(ir.DataType.FLOAT))
        for i, array in enumerate(arrays)
    ]
    model = new_model(values, "layer")
    model.graph.outputs.extend(Builder(model.graph).composite("LstmLayer", *values, outputs=5, **sample.attributes))
    provider = get_provider("TorchExecutionProvider")
    feeds = {f"x{i}": torch.tensor(array) for i, array in enumerate(arrays)}
    results = provider.compile(model, provider.create_state([])).run(feeds)
    for result, wanted in zip(results.values(), sample.twin(*feeds.values()), strict=True):
        torch.testing.assert_close(torch.as_tensor(result), wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16])
def test_the_workspace_of_a_layer_has_its_size_under_autocast(half):
    recurrent._workspace_bytes.cache_clear()
    plain = recurrent._workspace_bytes((5, 2, 3), (16, 3), (16, 4))
    recurrent._workspace_bytes.cache_clear()
    with torch.autocast("cpu", half):
        assert recurrent._workspace_bytes((5, 2, 3), (16, 3), (16, 4)) == plain
