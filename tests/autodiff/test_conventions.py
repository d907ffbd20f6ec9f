"""What the derivative is where mathematics leaves it open: ties, kinks, ignored rows. Always what torch does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from tests.autodiff.graphs import SampleGraph
from tests.autodiff.samples.sample import sample

_TIES = np.array([[1.0, 2.0, 2.0], [3.0, 3.0, 3.0]])
_LABELS = np.array([-100, -100])


def clamp(x: torch.Tensor, low: torch.Tensor, high: torch.Tensor) -> torch.Tensor:
    """torch.clamp as it is up to torch 2.13: since 2.14 an x on a bound shares the gradient with the bound."""
    return torch.where(x < low, low, torch.where(x > high, high, x))


CASES = [
    sample("Max", _TIES, np.array([[1.0, 1.0, 2.0]]), twin=torch.maximum),
    sample("Min", _TIES, np.array([[1.0, 1.0, 2.0]]), twin=torch.minimum),
    sample("ReduceMax", _TIES, [1], twin=lambda x, a: x.amax(1, True)),
    sample("ReduceMin", _TIES, [1], twin=lambda x, a: x.amin(1, True)),
    sample("Clip", np.array([1.0, 2.0, 3.0]), np.array(1.0), np.array(2.0), twin=clamp),
    sample("Clip", np.array([1.0, 2.0, 3.0]), np.array(2.5), np.array(1.5), twin=torch.clamp),
    sample("Relu", np.array([-1.0, 0.0, 1.0]), twin=torch.relu),
    sample("Abs", np.array([-1.0, 0.0, 1.0]), twin=torch.abs),
    sample("LeakyRelu", np.array([-1.0, 0.0, 1.0]), alpha=0.25, twin=lambda x: F.leaky_relu(x, 0.25)),
    sample("Pow", np.array([0.0, 0.0, 0.0, 2.0]), np.array([0.0, 1.0, 2.5, 0.0]), twin=torch.pow),
    sample("GlobalMaxPool", _TIES.reshape(1, 1, 2, 3), twin=lambda x: x.amax((2, 3), True)),
    sample("GlobalMaxPool", _TIES.reshape(1, 2, 3, 1), twin=lambda x: x.amax((2, 3), True)),
    sample("ReduceL2", np.array([[0.0, 0.0], [3.0, 4.0]]), [1], twin=lambda x, a: x.norm(2, 1, True)),
    sample("ReduceProd", np.array([[0.0, 2.0, 3.0], [0.0, 0.0, 1.0]]), [1], twin=lambda x, a: x.prod(1, True)),
    sample("SoftmaxCrossEntropyLoss", np.array([[0.3, -1.0], [2.0, 1.0]]), _LABELS, ignore_index=-100,
           twin=lambda x, i: F.cross_entropy(x, i)),
    sample("NegativeLogLikelihoodLoss", np.array([[0.3, -1.0], [2.0, 1.0]]), _LABELS, ignore_index=-100,
           twin=lambda x, i: F.nll_loss(x, i)),
    sample("Embedding", np.arange(12.0).reshape(4, 3), np.array([[0, 2], [2, 3]]), domain="ontrain", padding_idx=2,
           twin=lambda w, i: F.embedding(i, w, padding_idx=2)),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=[f"{c.op_type}-{i}" for i, c in enumerate(CASES)])
def test_ties_kinks_and_ignored_rows_are_as_in_torch(case: Any, rng: np.random.Generator) -> None:
    arrays: Sequence[Any] = case.draw(rng)
    graph = SampleGraph(case, arrays)
    seeds = graph.seeds(graph.y, rng, "dy")
    grads = graph.evaluator(graph.gradient(graph.y, seeds, graph.wrt))()
    tensors = [torch.tensor(a, requires_grad=a.dtype.kind == "f") for a in arrays]
    wrt = [t for t in tensors if t.requires_grad]
    expected = torch.autograd.grad(case.twin(*tensors), wrt, torch.tensor(graph.feeds["dy0"]))
    for got, want in zip(grads, expected, strict=True):
        np.testing.assert_allclose(got, want.numpy(), rtol=1e-12, atol=1e-15)


def test_the_padding_row_takes_no_gradient_in_the_second_derivative_either(rng: np.random.Generator) -> None:
    graph = SampleGraph(CASES[-1], CASES[-1].draw(rng))
    seeds = graph.seeds(graph.y, rng, "dy")
    first = graph.gradient(graph.y, seeds, graph.wrt)
    again = graph.gradient(first, graph.seeds(first, rng, "ddw"), seeds)
    (got,) = graph.evaluator(again)()
    assert not got[0, 1].any() and not got[1, 0].any()
    np.testing.assert_allclose(got[0, 0], graph.feeds["ddw0"][0])


@pytest.mark.parametrize("fixed", [[1], []], ids=["ratio known", "ratio fed"])
def test_the_mask_of_the_forward_pass_is_the_mask_of_the_backward_pass(
    fixed: Sequence[int], rng: np.random.Generator
) -> None:
    case = sample("Dropout", np.ones((20, 20)), np.array(0.25), np.array(True), fixed=fixed, twin=torch.clone)
    graph = SampleGraph(case, case.draw(rng))
    seeds = graph.seeds(graph.y, rng, "dy")
    y, dx, *_ = graph.evaluator([*graph.y, *graph.gradient(graph.y, seeds, graph.wrt)])()
    assert 0.6 < (y != 0).mean() < 0.9
    np.testing.assert_allclose(dx, graph.feeds["dy0"] * y, rtol=1e-12)


def test_attention_with_dropout_uses_its_own_mask(rng: np.random.Generator) -> None:
    shapes = [(2, 2, 3, 4), (2, 2, 5, 4), (2, 2, 5, 4), (2, 1, 1, 5)]
    arrays = [rng.standard_normal(s) for s in shapes]
    case = sample("Attention", *arrays, domain="ontrain", outputs=3, scale=0.5, dropout=0.5, twin=torch.clone)
    graph = SampleGraph(case, arrays)
    seeds = graph.seeds(graph.y, rng, "dy")
    grads = graph.gradient(graph.y, seeds, graph.wrt)
    y, mask, *got = graph.evaluator([*graph.y, graph.node.outputs[2], *grads])()
    q, k, v, bias = (torch.tensor(a, requires_grad=True) for a in arrays)
    probs = torch.softmax(q @ k.mT * 0.5 + bias, -1) * torch.tensor(mask) * 2
    np.testing.assert_allclose(y, (probs @ v).detach().numpy(), rtol=1e-6)
    expected = torch.autograd.grad(probs @ v, (q, k, v, bias), torch.tensor(graph.feeds["dy0"]))
    for have, want in zip(got, expected, strict=True):
        np.testing.assert_allclose(have, want.numpy(), rtol=1e-6, atol=1e-9)
