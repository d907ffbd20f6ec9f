"""Questions about sizes: of operators over rows chosen by values, in programs that torch writes anew; of threads."""

from __future__ import annotations

import copy
import threading

import pytest
import torch
from torch import nn
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode, ShapeEnv
from torch.nn import functional as F

from ontrain.capture.questions import questions_answered
from ontrain.training.ortmodule import ORTModule

CLASSES = 11
OF_ROWS = {
    "cross entropy": F.cross_entropy,
    "smoothed cross entropy": lambda scores, labels: F.cross_entropy(scores, labels, label_smoothing=0.1),
    "likelihood": lambda scores, labels: F.nll_loss(scores.log_softmax(-1), labels, reduction="sum"),
    "distances": lambda scores, labels: torch.cdist(scores, scores).mean(),
    "logarithm of a sum": lambda scores, labels: scores.logsumexp(-1).sum(),
    "normalisation": lambda scores, labels: (
        F.batch_norm(scores, None, None, training=True) * torch.arange(1.0, 12.0)
    ).sigmoid().sum(),
    "attention": lambda scores, labels: F.scaled_dot_product_attention(*[scores[None, None]] * 3).sum(),
}  # fmt: skip
MAY_BE_EMPTY = ("cross entropy", "likelihood", "logarithm of a sum")


class OfRows(nn.Module):
    """A function of the rows that have a label."""

    def __init__(self, function, rare):
        super().__init__()
        self.head, self.function, self.rare = nn.Linear(4, CLASSES), function, rare

    def forward(self, x, labels):
        scores = self.head(x)
        if self.rare:  # has no translation: torch writes the whole program anew
            scores = scores + torch.special.entr(scores.sigmoid())
        rows = labels != -100
        return self.function(scores[rows], labels[rows])


def batches(case):
    generator = torch.Generator().manual_seed(3)
    for some, every in (((2, 3), 2), ((3, 5), 3), *([((2, 2), 1)] if case in MAY_BE_EMPTY else [])):
        x, labels = torch.randn(*some, 4, generator=generator), torch.randint(CLASSES, some, generator=generator)
        labels.view(-1)[::every] = -100
        yield x, labels


def step(module, x, labels, dtype):
    module.zero_grad()
    with torch.autocast("cpu", dtype or torch.bfloat16, enabled=dtype is not None):
        loss = module(x, labels)
    loss.float().backward()
    return loss.detach(), [parameter.grad for parameter in module.parameters()]


@pytest.mark.sampled(2)
@pytest.mark.filterwarnings("ignore:.*is captured anew for each shape")  # distances
@pytest.mark.parametrize("case", OF_ROWS)
def test_beside_a_rare_operator_the_loss_and_gradients_are_eagers(case):
    eager = OfRows(OF_ROWS[case], rare=True)
    ours = ORTModule(copy.deepcopy(eager))
    for x, labels in batches(case):
        expected, actual = step(eager, x, labels, None), step(ours, x, labels, None)
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5, equal_nan=True)


@pytest.mark.sampled(2)
@pytest.mark.filterwarnings("ignore:.*is captured anew for each shape")  # distances
@pytest.mark.parametrize("case", OF_ROWS)
def test_under_autocast_the_loss_and_gradients_are_as_near_as_eagers(case):
    eager = OfRows(OF_ROWS[case], rare=False)
    ours = ORTModule(copy.deepcopy(eager))
    for x, labels in batches(case):
        expected, actual = step(eager, x, labels, torch.bfloat16), step(ours, x, labels, torch.bfloat16)
        assert actual[0].dtype == expected[0].dtype
        torch.testing.assert_close(actual, expected, rtol=3e-2, atol=3e-2, equal_nan=True)


def test_a_question_of_another_thread_is_not_answered():
    number = ShapeEnv().create_unbacked_symint()
    outcomes = []

    def ask():
        try:
            outcomes.append(bool(number == 3))
        except GuardOnDataDependentSymNode:
            outcomes.append("unanswered")

    with questions_answered(lambda expr: True):
        other = threading.Thread(target=ask)
        other.start()
        other.join()
        ask()
    ask()
    assert outcomes == ["unanswered", True, "unanswered"]
