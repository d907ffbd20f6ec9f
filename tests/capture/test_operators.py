"""The translation table against eager PyTorch: each sample alone says which operator is wrong."""

from __future__ import annotations

import pytest
import torch

from ontrain.capture import capture
from tests.capture.harness import run_captured
from tests.capture.samples import FAMILIES

pytestmark = pytest.mark.sampled(4)


class Family(torch.nn.Module):
    def __init__(self, functions):
        super().__init__()
        self.functions = functions

    def forward(self, inputs):
        return {name: function(*inputs[name]) for name, function in self.functions.items()}


@pytest.mark.parametrize("family", FAMILIES)
def test_translated_operators_compute_what_torch_does(family):
    wanted = FAMILIES[family]
    module = Family({name: sample[0] for name, sample in wanted.items()})
    inputs = {name: sample[1:] for name, sample in wanted.items()}
    captured = capture(module, (inputs,))
    expected = module(inputs)
    outputs, _ = run_captured(captured, (inputs,))
    wrong = []
    for name in wanted:
        try:
            torch.testing.assert_close(outputs[name], expected[name], rtol=1e-4, atol=1e-5, equal_nan=True)
        except AssertionError as error:
            wrong.append(f"{name}: {error}")
    assert not wrong, "\n".join(wrong)
