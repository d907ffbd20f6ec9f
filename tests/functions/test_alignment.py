"""Losses over alignments: bodies and kernels beside torch's own function, gradients and all, at any lengths."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
import torch
from hypothesis import given as drawn, settings, strategies as st
from torch.nn import functional as F

from ontrain import InputError
from ontrain.capture import capture
from ontrain.graph import Builder, new_model
from ontrain.providers import get_provider
from ontrain.training.ortmodule import ORTModule

PROVIDERS = ("TorchExecutionProvider", "ReferenceExecutionProvider", "OnnxRuntimeExecutionProvider")


def computed(provider, feeds, **options):
    """The losses, and the adjoint of the log-probabilities for the adjoints `dy`, as a provider has them."""
    kinds = {torch.float64: ir.DataType.DOUBLE, torch.int64: ir.DataType.INT64}
    values = {
        name: ir.Value(name=name, shape=ir.Shape(tensor.shape), type=ir.TensorType(kinds[tensor.dtype]))
        for name, tensor in feeds.items()
    }
    op = Builder(new_model(list(values.values()), "alignment").graph)
    operands = [values[name] for name in ("x", "targets", "lengths", "sizes")]
    op.graph.outputs.append(op.composite("CTC", *operands, **options))
    op.graph.outputs.append(op.composite("CTCGrad", values["dy"], *operands, **options))
    model = ir.Model(op.graph, ir_version=10)
    runner = get_provider(provider, "cpu")
    outputs = runner.compile(model, runner.create_state([])).run(feeds)
    return [torch.as_tensor(outputs[value.name]) for value in op.graph.outputs]


def eager(feeds, blank, zero_infinity):
    x = feeds["x"].clone().requires_grad_()
    loss = F.ctc_loss(
        x, feeds["targets"], feeds["lengths"], feeds["sizes"], blank, reduction="none", zero_infinity=zero_infinity
    )
    loss.backward(feeds["dy"])
    return [loss.detach(), x.grad]


@st.composite
def batches(draw):
    time, count, most = draw(st.integers(1, 7)), draw(st.integers(1, 3)), draw(st.integers(1, 4))
    classes = draw(st.integers(2, 4))
    blank = draw(st.integers(0, classes - 1))
    rng = np.random.default_rng(draw(st.integers(0, 2**31)))
    targets = rng.integers(0, classes - 1, (count, most))
    sizes = rng.integers(0, most + 1, count)
    targets = torch.from_numpy(targets + (targets >= blank))  # a blank is no label
    filler = draw(st.sampled_from([-1, 0, 99]))
    feeds = {
        "x": torch.from_numpy(rng.standard_normal((time, count, classes))).log_softmax(-1),
        "targets": torch.where(torch.arange(most) < torch.from_numpy(sizes)[:, None], targets, filler),
        "lengths": torch.from_numpy(rng.integers(1, time + 1, count)),
        "sizes": torch.from_numpy(sizes),
        "dy": torch.from_numpy(rng.standard_normal(count)),
    }
    return feeds, blank


@settings(max_examples=40, deadline=None)
@drawn(batches(), st.booleans())
def test_bodies_and_kernels_are_torchs_function(batch, zero_infinity):
    feeds, blank = batch
    wanted = eager(feeds, blank, zero_infinity)
    for provider in PROVIDERS[:2]:
        results = computed(provider, feeds, blank=blank, zero_infinity=int(zero_infinity))
        for result, expected in zip(results, wanted, strict=True):
            torch.testing.assert_close(result, expected, rtol=1e-9, atol=1e-11, equal_nan=True, msg=provider)


def batch(time=6):
    torch.manual_seed(time)
    return {
        "x": torch.randn(time, 3, 5, dtype=torch.float64).log_softmax(-1),
        "targets": torch.tensor([[1, 2, 2], [3, 1, 4], [4, 4, 4]]), "lengths": torch.tensor([time, time - 1, 2]),
        "sizes": torch.tensor([2, 3, 0]), "dy": torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64),
    }  # fmt: skip


def test_onnxruntime_runs_the_bodies():
    feeds = batch()
    for result, expected in zip(computed(PROVIDERS[2], feeds), eager(feeds, 0, False), strict=True):
        torch.testing.assert_close(result, expected, rtol=1e-9, atol=1e-11)


class Recogniser(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 5)

    def forward(self, x, targets, lengths, sizes):
        return F.ctc_loss(self.layer(x).log_softmax(-1), targets, lengths, sizes, zero_infinity=True)


def spoken(time, seed=0):
    draws = torch.Generator().manual_seed(seed)
    x = torch.randn(time, 3, 4, generator=draws, dtype=torch.float64)
    return (
        x,
        torch.tensor([[1, 2, 2], [3, 1, 4], [4, 4, 4]]),
        torch.tensor([time, time - 1, 2]),
        torch.tensor([2, 3, 0]),
    )


def test_recordings_of_any_length_are_captured_once():
    torch.manual_seed(0)
    module = Recogniser().double()
    ours = ORTModule(module)
    for time in (5, 9, 30, 400, 6):
        module.zero_grad()
        loss = module(*spoken(time))
        loss.backward()
        wanted = module.layer.weight.grad.clone()
        module.zero_grad()
        result = ours(*spoken(time))
        result.backward()
        torch.testing.assert_close(result, loss, rtol=1e-12, atol=0)
        torch.testing.assert_close(module.layer.weight.grad, wanted, rtol=1e-10, atol=1e-14)
    assert len(ours._engine.entries) == 1


def test_time_makes_the_graph_no_longer():
    sizes = [len(list(capture(Recogniser().double(), spoken(time)).model.graph)) for time in (5, 500)]
    assert sizes[0] == sizes[1] < 60


def test_a_forward_may_ask_for_the_gradient():
    class Penalised(Recogniser):
        def forward(self, x, targets, lengths, sizes):
            x = x.requires_grad_()
            loss = super().forward(x, targets, lengths, sizes)
            (slope,) = torch.autograd.grad(loss, x)
            return loss + slope.square().sum() * 0 + (slope * x.detach()).sum()

    module = Penalised().double()
    wanted = module(*spoken(6))
    torch.testing.assert_close(ORTModule(module)(*spoken(6)), wanted, rtol=1e-10, atol=0)


@pytest.mark.parametrize(
    ("name", "value"), [("lengths", [9, 2, 2]), ("sizes", [7, 1, 1])], ids=["too many times", "too many labels"]
)
def test_lengths_that_are_not_there_are_refused(name, value):
    x, targets, lengths, sizes = spoken(6)
    values = {"lengths": lengths, "sizes": sizes} | {name: torch.tensor(value)}
    with pytest.raises((InputError, ValueError), match="length"):
        ORTModule(Recogniser().double())(x, targets, values["lengths"], values["sizes"])


@pytest.mark.parametrize("label", [-1, 5, 99])
def test_a_label_that_is_no_class_is_refused_and_padding_is_not(label):
    x, targets, lengths, sizes = spoken(6)
    ours = ORTModule(Recogniser().double())
    targets[0, 2] = label  # behind the two labels of the first sequence
    ours(x, targets, lengths, sizes)
    targets[0, 1] = label
    with pytest.raises(ValueError, match=f"index {label} is out of range: there are 5 classes"):
        ours(x, targets, lengths, sizes)
