"""What a forward makes at its first call is made by copies of the module, which some modules do not allow."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from ontrain.errors import CaptureError
from ontrain.training.ortmodule import ORTModule


class Masked(nn.Module):
    """Makes its mask in forward; holds what Python does not copy."""

    def __init__(self):
        super().__init__()
        self.layer, self.told = nn.Linear(4, 4), [staticmethod(print)]
        self.register_buffer("mask", None, persistent=False)

    def forward(self, x):
        if self.mask is None:
            self.register_buffer("mask", torch.ones(len(x), len(x)).triu(1).bool(), persistent=False)
        return (self.layer(x) @ x.T).masked_fill(self.mask, 0.0)


def test_a_module_that_cannot_be_copied_is_refused_for_what_it_makes():
    module = Masked()
    with pytest.raises(TypeError, match="staticmethod"):
        copy.deepcopy(module)
    with pytest.raises(CaptureError, match=r"(?s)'mask' of Masked.*register the buffer with its final shape"):
        ORTModule(module)(torch.randn(3, 4))


def test_it_trains_after_a_call_of_its_own():
    module = Masked()
    x = torch.randn(3, 4)
    expected = module(x)
    torch.testing.assert_close(ORTModule(module)(x), expected)
