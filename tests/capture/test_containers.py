"""Parameters and buffers that forward reads from containers of its module have gradients and values as registered."""

import copy
from collections import OrderedDict

import pytest
import torch
from torch import nn

from ontrain.errors import CaptureError
from ontrain.training.ortmodule import ORTModule

CONTAINERS = {
    "dict": (lambda w, b: {"w": w, "b": b}, lambda c: (c["w"], c["b"])),
    "ordered": (lambda w, b: OrderedDict(w=w, b=b), lambda c: (c["w"], c["b"])),
    "list": (lambda w, b: [w, b], tuple),
    "tuple": (lambda w, b: (w, b), tuple),
    "nested": (lambda w, b: {"layers": [{"w": w}, (b,)]}, lambda c: (c["layers"][0]["w"], c["layers"][1][0])),
}


class Cell(nn.Module):
    def __init__(self, container):
        super().__init__()
        contain, self.read = CONTAINERS[container]
        self.layer, self.w = nn.Linear(3, 3), nn.Parameter(torch.rand(3))
        self.register_buffer("scale", torch.rand(3))
        self.double()
        self.tensors = contain(self.w, self.scale)

    def forward(self, x):
        w, scale = self.read(self.tensors)
        with torch.no_grad():
            size = w.norm() + 1
        return (self.layer(x) * w * scale / size + self.w).pow(2).mean()


@pytest.mark.parametrize("container", CONTAINERS)
def test_what_a_container_holds_is_the_registered_tensor(container):
    eager = Cell(container)
    ours = ORTModule(copy.deepcopy(eager))
    tensors = ours.module.tensors
    for rows in (3, 5):
        x = torch.randn(rows, 3, dtype=torch.float64)
        losses = []
        for module in (ours, eager):
            module.zero_grad()
            losses.append(module(x))
            losses[-1].backward()
        torch.testing.assert_close(*losses)
        for parameter, expected in zip(ours.parameters(), eager.parameters(), strict=True):
            torch.testing.assert_close(parameter.grad, expected.grad)
        with torch.no_grad():
            for tensor in (ours.module.w, eager.w, ours.module.scale, eager.scale):
                tensor.mul_(1.5)
    assert ours._engine.captures == 1
    assert ours.module.tensors is tensors
    assert ours.module.read(tensors)[0] is ours.module.w


def test_another_parameter_in_a_container_is_read_from_then_on():
    cell = Cell("dict")
    ours, x = ORTModule(cell), torch.randn(2, 3, dtype=torch.float64)
    ours(x)
    cell.register_parameter("other", nn.Parameter(torch.rand(3, dtype=torch.float64)))
    cell.tensors["w"] = cell.other
    ours(x).backward()
    assert cell.other.grad is not None
    torch.testing.assert_close(ours(x), cell(x))


def test_a_container_of_itself_is_refused_by_name():
    cell = Cell("dict")
    cell.tensors["itself"] = cell.tensors
    with pytest.raises(CaptureError):
        ORTModule(cell)(torch.randn(2, 3, dtype=torch.float64))
