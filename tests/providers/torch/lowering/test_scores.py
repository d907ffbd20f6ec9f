"""Transforms of scores against what they are by definition."""

from __future__ import annotations

import torch

from ontrain.providers.torch.lowering.scores import of_two_classes, transformed


def test_probit_is_the_quantile_of_the_normal_distribution():
    p = torch.linspace(0.01, 0.99, 9, dtype=torch.float64).reshape(3, 3)
    torch.testing.assert_close(transformed(p, "PROBIT"), torch.special.ndtri(p))
    second = of_two_classes(p[:, :1], "PROBIT", probability=True)
    torch.testing.assert_close(second, torch.special.ndtri(torch.cat([1 - p[:, :1], p[:, :1]], 1)))


def test_a_softmax_that_leaves_zeros_alone_is_a_softmax_of_the_others():
    scores = torch.tensor([[1.0, 0.0, -2.0], [0.5, 2.0, 3.0]])
    result = transformed(scores, "SOFTMAX_ZERO")
    first, last = scores[0, [0, 2]].softmax(0)
    torch.testing.assert_close(result[0], torch.stack([first, torch.tensor(0.0), last]))
    torch.testing.assert_close(result[1], scores[1].softmax(0))


def test_two_classes_share_what_there_is():
    score = torch.tensor([[0.25], [3.0]])
    torch.testing.assert_close(of_two_classes(score, "NONE", probability=True).sum(1), torch.ones(2))
    torch.testing.assert_close(of_two_classes(score, "LOGISTIC", probability=False).sum(1), torch.ones(2))
    torch.testing.assert_close(of_two_classes(score, "NONE", probability=False).sum(1), torch.zeros(2))
