"""How a trainer passes the described inputs to forward: by their names, or by their places."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from ontrain.training.model_desc import ModelDescription
from ontrain.training.wrapping import DescribedModule


def plain(scale, shift):
    return 2 * scale + shift


def swallowing(scale, middle=None, shift=None, **unread):
    return 2 * scale + (0 if shift is None else shift) + (0 if middle is None else 100 * middle)


def by_name(*, scale, shift):
    return 2 * scale + shift


def by_place(scale, shift, /):
    return 2 * scale + shift


class Model(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.forward = function


@pytest.mark.parametrize(
    ("function", "names", "result"),
    [
        (plain, ["scale", "shift"], 8),
        (plain, ["shift", "scale"], 7),
        (plain, ["a", "b"], 8),
        (plain, ["scale", "b"], 8),
        (by_name, ["shift", "scale"], 7),
        (by_place, ["shift", "scale"], 8),
        (swallowing, ["scale", "middle"], 206),
        (swallowing, ["scale", "shift"], 8),
        (swallowing, ["unheard", "scale"], 4),
        (swallowing, ["a", "b"], 206),
    ],
)
def test_inputs_go_where_their_names_say_else_by_place(function, names, result):
    """The first input is 3 and the second 2."""
    description = {"inputs": [(name, []) for name in names], "outputs": [("output", [], True)]}
    module = DescribedModule(Model(function), ModelDescription.parse(description), None)
    (output,) = module(torch.tensor(3.0), torch.tensor(2.0))
    assert output.item() == result
