"""Losses that match predictions and objects by scipy's `linear_sum_assignment`, as detectors do."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from scipy import optimize
from scipy.optimize import linear_sum_assignment
from torch import nn

from ontrain.errors import CaptureError
from ontrain.training.ortmodule import ORTModule


class Detector(nn.Module):
    """Boxes by queries, and the distance of the matched ones from objects, whose number differs between images."""

    def __init__(self, function=linear_sum_assignment, maximize=False):
        super().__init__()
        self.queries = nn.Linear(4, 6 * 3)
        self.maximize = maximize

    def forward(self, x, objects):  # x: [N, 4], objects: N tensors [K, 3]
        boxes = self.queries(x).unflatten(1, (6, 3))
        with torch.no_grad():
            counts = [len(each) for each in objects]
            cost = torch.cdist(boxes.flatten(0, 1), torch.cat(objects), p=1).unflatten(0, (-1, 6)).cpu()
            matches = [self.match(c[i]) for i, c in enumerate(cost.split(counts, -1))]
        total = 0
        for image, (rows, columns) in enumerate(matches):
            rows, columns = torch.as_tensor(rows, dtype=torch.int64), torch.as_tensor(columns, dtype=torch.int64)
            total = total + (boxes[image][rows] - objects[image][columns]).square().sum()
        return total / sum(counts)

    def match(self, cost):
        return linear_sum_assignment(cost, maximize=self.maximize)


class ByModule(Detector):
    def match(self, cost):
        return optimize.linear_sum_assignment(-cost, True)


class InGroups(Detector):
    """A detector whose groups of queries are matched each by itself."""

    def match(self, cost):  # [6, K]
        rows, columns = zip(*(linear_sum_assignment(group) for group in cost.split(3)), strict=True)
        return np.concatenate([rows[0], rows[1] + 3]), np.concatenate(columns, axis=0)


class ByArrays(Detector):
    """A detector that hands arrays to scipy, as most do, and takes tensors of what it returns."""

    def match(self, cost):
        cost = cost.detach().cpu().numpy()
        rows, columns = linear_sum_assignment(cost[: cost.shape[0]])
        return torch.from_numpy(rows), torch.from_numpy(columns)


class UsesArrays(Detector):
    """One that computes with the array, which no graph holds."""

    def match(self, cost):
        return linear_sum_assignment(cost.numpy().round(2))


def batch(*counts):
    return torch.randn(len(counts), 4, dtype=torch.float64), [torch.randn(k, 3, dtype=torch.float64) for k in counts]


def assert_equal(ours, eager, arguments):
    results = []
    for module in (ours, eager):
        module.zero_grad()
        loss = module(*arguments)
        loss.backward()
        results.append([loss.detach(), *(p.grad for p in module.parameters())])
    for mine, theirs in zip(*results, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("make", [Detector, lambda: Detector(maximize=True), ByModule, InGroups, ByArrays])
@pytest.mark.sampled(4)
def test_matched_losses_and_gradients_are_eagers(make):
    eager = make().double()
    ours = ORTModule(copy.deepcopy(eager))
    for counts in ((2, 3), (4, 2), (5, 6), (1, 1), (7, 2), (0, 3)):
        assert_equal(ours, eager, batch(*counts))


def test_an_array_that_forward_computes_with_is_refused_with_its_line():
    with pytest.raises(CaptureError, match="numpy") as refusal:
        ORTModule(UsesArrays().double())(*batch(2, 3))
    assert "round" in str(refusal.value)


def test_numbers_of_objects_vary_in_one_graph():
    eager = Detector().double()
    ours = ORTModule(copy.deepcopy(eager))
    for counts in ((2, 3), (4, 2), (5, 6), (3, 3)):
        assert_equal(ours, eager, batch(*counts))
    assert ours.__dict__["_engine"].captures == 1


def test_the_function_is_scipys_again_after_a_capture():
    own, joined = optimize.linear_sum_assignment, np.concatenate
    ORTModule(Detector().double())(*batch(2, 3))
    assert linear_sum_assignment is own is optimize.linear_sum_assignment
    assert np.concatenate is joined
    assert type(torch.ones(2).numpy()) is np.ndarray
    assert "numpy" not in vars(torch.Tensor)


def test_costs_that_are_no_numbers_are_refused():
    x, objects = batch(2, 3)
    ours = ORTModule(Detector().double())
    ours(x, objects)
    objects[0][0, 0] = float("nan")
    with pytest.raises(ValueError, match="assignment"):
        ours(x, objects)
