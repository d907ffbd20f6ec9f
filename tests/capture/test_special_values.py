"""Values and gradients where functions have an edge: at zeros, at bounds, beside a NaN, compared with eager."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from ontrain.errors import CaptureError, InputError
from tests.training.ortmodule.networks import pair

ZEROS = torch.tensor([[0.5, -1.0, 2.0, 0.25], [0.0, 0.0, 0.0, 0.0], [1.0, 1.0, 1.0, 1.0], [0.0, 3.0, 0.0, -3.0]])
CERTAIN = torch.tensor([[0.0, 1.0, 0.0, 1.0], [0.5, 0.0, 1.0, 0.25]])
LABELS = torch.tensor([[0, 2, -1, 1], [1, -1, 0, 0], [3, 2, 1, 0], [-1, 0, 0, 0]])
TENTHS = torch.arange(-40, 40) * 0.1
CLASSES = torch.tensor([0, 3, 1, 2])


def _with(value: float, place: int = 0) -> torch.Tensor:
    x = ZEROS.clone()
    x.view(-1)[place] = value
    return x


class Function(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


CASES = {
    "a probability of 0 or 1": (lambda p: F.binary_cross_entropy(p, CERTAIN.flip(1)), CERTAIN),
    "a sigmoid at its end": (lambda x: F.binary_cross_entropy((100 * x).sigmoid(), (ZEROS > 0).float()), ZEROS),
    "a weight for each probability": (
        lambda p: F.binary_cross_entropy(p, CERTAIN, torch.tensor([0.5, 2.0, 1.0, 3.0]), reduction="sum"), CERTAIN,
    ),
    "labels that end early": (lambda x: F.multilabel_margin_loss(x, LABELS), ZEROS),
    "labels of each row": (lambda x: F.multilabel_margin_loss(x, LABELS, reduction="none"), ZEROS),
    "labels of one row": (lambda x: F.multilabel_margin_loss(x[0], LABELS[0]), ZEROS),
    "labels beside a NaN": (lambda x: F.multilabel_margin_loss(x, LABELS, reduction="sum"), _with(math.nan)),
    "one score": (lambda x: F.multilabel_margin_loss(x[0, 0], LABELS[0, 0]), ZEROS),
    "one class": (lambda x: F.multi_margin_loss(x[0, 0], CLASSES[0]), ZEROS),
    "classes beside a NaN": (lambda x: F.multi_margin_loss(x, CLASSES, reduction="none"), _with(math.nan)),
    "the class itself a NaN": (lambda x: F.multi_margin_loss(x, CLASSES, p=2), _with(math.nan, 7)),
    "classes beside infinity": (lambda x: F.multi_margin_loss(x, CLASSES, p=2, reduction="none"), _with(math.inf, 1)),
    "classes of one row": (lambda x: F.multi_margin_loss(x[0], CLASSES[0], margin=0.5), ZEROS),
    "a NaN among class weights": (
        lambda x: F.multi_margin_loss(x, CLASSES, weight=torch.tensor([math.nan, 1.0, 2.0, 3.0]), reduction="none"),
        ZEROS - 5 * F.one_hot(torch.tensor([1, 2, 3, 0]), 4),
    ),
    "a variance below the least": (lambda x: F.gaussian_nll_loss(ZEROS, ZEROS.flip(1), x.abs(), eps=0.5), ZEROS),
    "a pair with a NaN": (lambda x: F.margin_ranking_loss(x, x.flip(0), torch.ones(4, 4)), _with(math.nan)),
    "a triplet with a NaN": (lambda x: F.triplet_margin_loss(ZEROS, ZEROS.flip(1), x), _with(math.nan)),
    "a swapped triplet with a NaN": (
        lambda x: F.triplet_margin_loss(ZEROS, ZEROS.flip(1), x, p=1, swap=True, reduction="none"), _with(math.nan),
    ),
    "a triplet with equal distances": (
        lambda x: F.triplet_margin_loss(x, x.flip(1), x, p=3, swap=True, reduction="none"), ZEROS,
    ),
    "the largest distances of a triplet": (
        lambda x: F.triplet_margin_loss(x, ZEROS.flip(1), x.flip(0), p=math.inf, eps=0.0), ZEROS,
    ),
    "a triplet by roots": (lambda x: F.triplet_margin_loss(x, ZEROS.flip(1), x.flip(0), p=0.5, swap=True), ZEROS),
    "a bound beside a NaN": (lambda x: x.clamp(-1, 1), _with(math.nan)),
    "a lower bound beside a NaN": (lambda x: torch.clamp_min(x, 0), _with(math.nan)),
    "bounds that are tensors beside a NaN": (lambda x: x.clamp(ZEROS.flip(1) - 1, ZEROS.flip(0) + 1), _with(math.nan)),
    "a bound that is a NaN": (lambda x: x.clamp(min=_with(math.nan, 4)), ZEROS),
    "weights of an absolute error": (lambda x: F.l1_loss(x, ZEROS.flip(0), weight=ZEROS.abs()), ZEROS),
    "a sine over zero": (torch.sinc, ZEROS),
    "zero times a logarithm": (lambda x: torch.xlogy(x, torch.tensor([0.5, 2.0, 3.0, 1.0])), ZEROS),
    "zero times the logarithm of zero": (lambda x: torch.xlogy(ZEROS * 0, x.abs() + 0.5), ZEROS),
    "zero times a NaN": (lambda x: torch.xlogy(ZEROS, x + 4), _with(math.nan, 4)),
    "zero times a logarithm of one more": (lambda x: torch.special.xlog1py(x, ZEROS.flip(1).abs()), ZEROS),
    "the larger of equals": (lambda x: torch.maximum(x, x.flip(1)), ZEROS),
    "the larger beside a NaN": (lambda x: torch.maximum(x, ZEROS.flip(1)), _with(math.nan)),
    "the smaller beside a NaN": (lambda x: torch.minimum(x, ZEROS.flip(1)), _with(math.nan)),
    "no deviation": (lambda x: x.std(1), ZEROS),
    "no deviation, and a mean": (lambda x: sum(torch.std_mean(x, 1)), ZEROS),
    "the angle of nothing": (lambda x: F.cosine_similarity(x, x.flip(1) + 1), ZEROS),
    "the angle of all pairs": (lambda x: F.cosine_similarity(x[:, None], x[None], dim=-1), ZEROS),
    "a length below the bound": (lambda x: F.cosine_similarity(x, ZEROS.flip(0), eps=1.5), ZEROS),
    "tenths over a tenth": (lambda x: x.detach() // 0.1 + x, TENTHS),
    "the rest of tenths": (lambda x: x % 0.1, TENTHS),
    "tenths over what divides them": (
        lambda x: torch.div(x, torch.tensor([0.1, -0.3]).repeat(40), rounding_mode="floor") + x, TENTHS,
    ),
    "over infinity": (lambda x: torch.remainder(x, math.inf), ZEROS),
    "over nothing": (lambda x: torch.div(x, 0.0, rounding_mode="floor"), ZEROS[0]),
}  # fmt: skip


@pytest.mark.sampled(3)
@pytest.mark.parametrize("case", CASES)
def test_values_and_gradients_at_an_edge_are_eagers(case):
    function, x = CASES[case]
    ours, eager = pair(Function(function))
    results = []
    for module in (ours, eager):
        leaf = x.clone().requires_grad_()
        y = module(leaf)
        if y.requires_grad:
            y.backward(torch.full_like(y, 0.7))
        results.append((y.detach(), torch.zeros_like(x) if leaf.grad is None else leaf.grad))
    for mine, theirs in zip(*results, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-6, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_a_whole_quotient_is_eagers_in_every_dtype(dtype):
    ours, eager = pair(Function(lambda x: (x // 0.1, x % 0.1)))
    x = TENTHS.to(dtype)
    for mine, theirs in zip(ours(x), eager(x), strict=True):
        assert torch.equal(mine, theirs)


@pytest.mark.parametrize("wrong", [6, -1, -7])
def test_a_label_outside_of_its_classes_is_refused(wrong):
    ours, eager = pair(Function(lambda labels: F.one_hot(labels, 6)))
    labels = torch.tensor([[0, 5], [2, 2]])
    assert torch.equal(ours(labels), eager(labels))
    with pytest.raises(InputError, match=f"holds index {wrong}, allowed is 0 to 5"):
        ours(torch.tensor([[0, wrong], [2, 2]]))


@pytest.mark.parametrize("loss", [F.multi_margin_loss, F.multilabel_margin_loss])
def test_one_row_of_scores_without_reduction_is_refused(loss):
    labels = CLASSES[0] if loss is F.multi_margin_loss else LABELS[0]
    ours, _ = pair(Function(lambda x: loss(x, labels, reduction="none")))
    with pytest.raises(CaptureError, match="one row of scores") as refused:
        ours(ZEROS[0])
    assert 'reduction="mean"' in str(refused.value)
