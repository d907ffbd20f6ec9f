"""A module's session seen from near: what its backward is fed."""

import onnx_ir as ir
import pytest
import torch
from torch import nn

from ontrain.capture import capture
from ontrain.graph import Builder, Role, new_model, set_role
from ontrain.passes import Journal
from ontrain.providers import available_providers, get_provider
from ontrain.session.module_session import ModuleSession


@pytest.mark.parametrize("provider", available_providers())
def test_an_input_that_is_called_as_an_adjoint_is_not_taken_for_one(provider):
    x, scale = (
        set_role(ir.Value(name=name, shape=ir.Shape([3]), type=ir.TensorType(ir.DataType.FLOAT)), Role.INPUT)
        for name in ("x", "y.adjoint")
    )
    model = new_model([x, scale], "product")
    y = Builder(model.graph).Mul(x, scale)
    y.name = "y"
    model.graph.outputs.append(y)
    session = ModuleSession(model, get_provider(provider), {}, torch.device("cpu"), lambda: Journal("module"))
    inputs = [torch.tensor([1.0, 2.0, 3.0]), torch.tensor([5.0, -1.0, 0.5])]
    plan = session.plan(inputs, wrt=("x", "y.adjoint"), seeds=("y",))
    outputs, tape = session.forward(plan, inputs, 0)
    adjoint = torch.tensor([1.0, 10.0, 100.0])
    gradients = session.backward(plan, tape, {"y": adjoint})
    torch.testing.assert_close(outputs["y"], inputs[0] * inputs[1])
    torch.testing.assert_close(gradients["x"], adjoint * inputs[1])
    torch.testing.assert_close(gradients["y.adjoint"], adjoint * inputs[0])


class Averaging(nn.Module):
    """Results read `mean`, an update alone reads `total` and the statistics, nothing reads what `last` was."""

    def __init__(self):
        super().__init__()
        self.layer, self.norm = nn.Linear(4, 4), nn.BatchNorm1d(4)
        for name in ("mean", "total", "last"):
            self.register_buffer(name, torch.zeros(4))

    def forward(self, x):
        y = self.norm(self.layer(x))
        self.total += self.mean
        self.mean.mul_(0.9).add_(y.detach().mean(0))
        self.last.copy_(y.detach()[0])
        return y - self.mean


def test_buffers_whose_old_values_reach_a_result_are_told_from_those_that_only_updates_read():
    captured = capture(Averaging().train(), (torch.randn(3, 4),))
    session = ModuleSession(
        captured.model, get_provider("TorchExecutionProvider"), captured.parameters | captured.buffers,
        torch.device("cpu"), lambda: Journal("module"),
    )  # fmt: skip
    assert session.read_buffers() == ["mean"]
