"""Operators of operands in several dtypes: dtype and values are eager's, for all pairs that eager computes."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import nn
from torch.nn import functional

from ontrain.errors import CaptureError
from ontrain.training.ortmodule import ORTModule

pytestmark = pytest.mark.sampled(4)

FLOATS = [torch.float32, torch.bfloat16, torch.float64, torch.float16]
INTEGERS = [torch.bool, torch.int64, torch.int32, torch.uint8]

FUNCTIONS = {
    "cosine similarity": functional.cosine_similarity,
    "divergence": lambda a, b: functional.kl_div(a, b, reduction="sum"),
    "divergence of logarithms": lambda a, b: functional.kl_div(a, b, log_target=True, reduction="sum"),
    "cross entropy of logits": functional.binary_cross_entropy_with_logits,
    "weighted cross entropy of logits": lambda a, b: functional.binary_cross_entropy_with_logits(a, b, b, pos_weight=b),
    "ldexp": torch.ldexp,
    "huber": functional.huber_loss,
    "sum of huber": lambda a, b: functional.huber_loss(a, b, reduction="sum", delta=0.2),
    "huber of each": lambda a, b: nn.HuberLoss(reduction="none", delta=0.2)(a, b),
    "soft margin": functional.soft_margin_loss,
    "sum of soft margin": lambda a, b: functional.soft_margin_loss(a, b, reduction="sum"),
    "ranking": lambda a, b: functional.margin_ranking_loss(a, b, torch.ones(3, 4)),
    "ranking by": lambda a, b: functional.margin_ranking_loss(a, a, b, margin=0.5),
    "triplet": lambda a, b: functional.triplet_margin_loss(a, b, a),
    "likelihood of normal numbers": lambda a, b: functional.gaussian_nll_loss(a, b, torch.ones(3, 4)),
    "cross entropy": functional.cross_entropy,
    "weighted cross entropy": lambda a, b: functional.cross_entropy(a, a.softmax(1), weight=b[0], label_smoothing=0.1),
    "at least": torch.clamp_min,
    "at most": torch.clamp_max,
    "greater number": torch.fmax,
    "heaviside": lambda a, b: torch.heaviside(a, b.to(a.dtype)),
    "sum in another dtype": lambda a, b: a.sum(0, dtype=b.dtype),
    "product in another dtype": lambda a, b: a.prod(0, dtype=b.dtype),
    "running sum in another dtype": lambda a, b: a.cumsum(0, dtype=b.dtype),
    "greatest": lambda a, b: a.amax(0),
    "shift to the left": torch.bitwise_left_shift,
    "shift to the right": torch.bitwise_right_shift,
    "smooth l1": functional.smooth_l1_loss,
    "l1": functional.l1_loss,
    "mean square": functional.mse_loss,
    "power": torch.pow,
    "power by True": lambda a, b: a**True,
    "power by False": lambda a, b: a**False,
    "power by a named True": lambda a, b: torch.pow(a, exponent=True),
    "power of two": lambda a, b: 2**b,
}


class Pairs(nn.Module):
    """A function of chosen pairs of tensors, by their places; a parameter makes it a module that trains."""

    def __init__(self, function, chosen=((0, 0),)):
        super().__init__()
        self.function, self.chosen, self.scale = function, chosen, nn.Parameter(torch.ones(()))

    def forward(self, firsts, seconds):
        return [self.function(firsts[i], seconds[j]) for i, j in self.chosen], self.scale * 2


def sample(dtype, seed):
    values = torch.rand(3, 4, generator=torch.Generator().manual_seed(seed)) * 0.8 + 0.1
    if dtype is torch.bool:
        return values > 0.5
    return values.to(dtype) if dtype.is_floating_point else (values * 5).to(dtype)


def computed(function, a, b):
    try:
        return function(a, b)
    except RuntimeError:
        return None


@pytest.mark.parametrize("exponent", [True, False])
def test_a_bool_to_a_power_that_torch_export_takes_for_a_number_is_refused(exponent):
    a = sample(torch.bool, 1)
    assert torch.ops.aten.pow(a, exponent).dtype is torch.bool
    with pytest.raises(CaptureError, match=r"a bool to the power of a bool[\s\S]*ones_like"):
        ORTModule(Pairs(lambda a, b: torch.ops.aten.pow(a, exponent)))([a], [a])


@pytest.mark.sampled(12)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_all_pairs_of_dtypes(name):
    function = FUNCTIONS[name]
    dtypes = [*FLOATS, *INTEGERS]
    firsts, seconds = [sample(dtype, 1) for dtype in dtypes], [sample(dtype, 2) for dtype in dtypes]
    expected = {
        (i, j): value for i, j in itertools.product(range(len(dtypes)), repeat=2)
        if (value := computed(function, firsts[i], seconds[j])) is not None
    }  # fmt: skip
    assert len(expected) >= 12
    results, _ = ORTModule(Pairs(function, tuple(expected)))(firsts, seconds)
    for result, (pair, value) in zip(results, expected.items(), strict=True):
        kinds = [dtypes[place] for place in pair]
        narrow = any(dtype in (torch.bfloat16, torch.float16) for dtype in kinds)
        tolerance = {"rtol": 2e-2, "atol": 2e-2} if narrow else {"rtol": 1e-5, "atol": 1e-6}
        torch.testing.assert_close(
            result, value, equal_nan=True, msg=lambda text, kinds=kinds: f"{kinds}: {text}", **tolerance
        )
