"""The translation table against eager PyTorch: each sample alone says which operator is wrong."""

from __future__ import annotations

import inspect

import pytest
import torch

from ontrain.capture import capture
from ontrain.capture.aten.registry import table
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


def _flags():
    """The translations, and the operators' overloads, that have a flag of one name with a default."""
    for name, translation in table.items():
        namespace, _, short = name.partition(".")[0].rpartition("::")
        packet = getattr(getattr(torch.ops, namespace or "aten"), short, None)
        parameters = inspect.signature(translation).parameters
        for overload in packet.overloads() if packet is not None else ():
            for argument in getattr(packet, overload)._schema.arguments:
                stated = parameters.get(argument.name)
                if argument.has_default_value() and isinstance(argument.default_value, bool) and stated is not None:
                    yield name, argument.name, argument.default_value, stated.default


def test_a_flag_that_is_left_out_is_what_it_is_in_torch():
    flags = [flag for flag in _flags() if flag[3] is not inspect.Parameter.empty]
    assert len(flags) > 100
    assert [flag for flag in flags if flag[2] != flag[3]] == []
