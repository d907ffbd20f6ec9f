"""Operators without a rule whose body the specification gives are differentiated through that body."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from tests.autodiff.graphs import SampleGraph
from tests.autodiff.samples.sample import Sample, normal, sample

_Q, _K, _V = (2, 2, 3, 4), (2, 2, 5, 4), (2, 2, 5, 3)

CASES = [
    sample("Attention", normal(*_Q), normal(*_K), normal(*_V), scale=0.5,
           twin=lambda q, k, v: F.scaled_dot_product_attention(q, k, v, scale=0.5)),
    sample("Attention", normal(*_Q), normal(*_K), normal(*_V), normal(3, 5), twin=F.scaled_dot_product_attention),
    sample("Attention", normal(2, 4, 3, 4), normal(2, 2, 3, 4), normal(2, 2, 3, 4), is_causal=1,
           twin=lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)),
    sample("CenterCropPad", normal(4, 5), [2, 8], twin=lambda x, shape: F.pad(x[1:3], (1, 2))),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=[f"{c.op_type}-{i}" for i, c in enumerate(CASES)])
def test_gradient_through_the_body_equals_torch(case: Sample, rng: np.random.Generator) -> None:
    arrays: list[Any] = case.draw(rng)
    graph = SampleGraph(case, arrays)
    seeds = graph.seeds(graph.y, rng, "dy")
    got = graph.evaluator(graph.gradient(graph.y, seeds, graph.wrt))()
    tensors = [torch.tensor(a, requires_grad=a.dtype.kind == "f") for a in arrays]
    wrt = [t for t in tensors if t.requires_grad]
    expected = torch.autograd.grad(case.twin(*tensors), wrt, torch.tensor(graph.feeds["dy0"]))
    for have, want in zip(got, expected, strict=True):
        # The body of Attention takes its softmax in single precision.
        np.testing.assert_allclose(have, want.numpy(), rtol=1e-5, atol=1e-6)
