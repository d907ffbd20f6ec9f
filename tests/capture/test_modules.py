"""Cases of torch's modules in which an ORTModule was refused or off, beside eager PyTorch in double precision."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.capture.module_db import differences


class Of(nn.Module):
    """A function of its input and of a parameter of some shape."""

    def __init__(self, function, *shape):
        super().__init__()
        self.function = function
        self.weight = nn.Parameter(torch.randn(shape, dtype=torch.float64))

    def forward(self, x):
        return self.function(x, self.weight)


def numbers(*shape):
    return torch.randn(shape, dtype=torch.float64, requires_grad=True)


def windows_of_a_transposed_tensor(x, weight):
    # Memory runs along the first axis.
    return (x * weight).transpose(0, 1).as_strided((3, 2, 4), (8, 4, 1))


def windows_of_columns(x, weight):
    return (x * weight)[:, :4].as_strided((4, 3, 2), (8, 1, 1))


@pytest.mark.parametrize(
    ("module", "x"),
    [
        (nn.PReLU().double(), numbers()),
        (nn.Embedding(7, 3, scale_grad_by_freq=True).double(), torch.tensor([[0, 1, 1], [1, 4, 4]])),
        (nn.Embedding(7, 3, padding_idx=1, scale_grad_by_freq=True).double(), torch.tensor([0, 1, 1, 4, 4])),
        (nn.Softmax(0), numbers()),
        (nn.LogSoftmax(-1), numbers()),
        (nn.Softmin(0), numbers()),
        (nn.SELU(), numbers(4, 3)),
        (Of(windows_of_a_transposed_tensor, 2, 8, 4), numbers(2, 8, 4)),
        (Of(windows_of_columns, 4, 8), numbers(4, 8)),
    ],
    ids=lambda part: None if isinstance(part, torch.Tensor) else getattr(part, "function", type(part)).__name__,
)
def test_results_and_gradients_are_eagers(module, x):
    assert differences(module, ((x,), {})) == []


@pytest.mark.parametrize("target", [[0.2, 0.0, 0.8], [0.5, -0.5, 1.0]])
def test_the_divergence_is_eagers_for_targets_that_are_no_probabilities(target):
    target = torch.tensor(target, dtype=torch.float64)
    assert differences(nn.KLDivLoss(reduction="none"), ((numbers(3), target), {})) == []


@pytest.mark.filterwarnings("ignore:linear_cross_entropy", "ignore:.*captured anew for each shape")
@pytest.mark.parametrize("settings", [{}, {"reduction": "sum"}, {"reduction": "none"}, {"label_smoothing": 0.1}])
def test_the_loss_of_a_head_in_chunks_is_eagers(settings):
    pieces = pytest.importorskip("torch.nn.modules.linear_cross_entropy_options", reason="this torch has no such loss")
    options = pieces.LinearCrossEntropyOptions(batch_chunk_size=2)
    label = torch.tensor([0, 3, -100, 2, 1])
    module = Of(lambda x, w: nn.functional.linear_cross_entropy(x, w, label, options=options, **settings), 4, 6)
    assert differences(module, ((numbers(5, 6),), {})) == []
