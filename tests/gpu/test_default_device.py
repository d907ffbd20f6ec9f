"""Programs that set `torch.set_default_device("cuda")`, as notebooks do: training and inference as without it."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import nn

import ontrain as ort
from ontrain.training import ORTTrainer, optim
from ontrain.training.ortmodule import ORTModule
from tests.training.conftest import DESC, Net, token_loss

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def default_device():
    torch.set_default_device("cuda")
    yield
    torch.set_default_device(None)


class Masked(nn.Module):
    """Tensors made in forward, with and without a device, and rows chosen by their values."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 4)
        self.register_buffer("scale", torch.tensor(0.5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        positions = torch.arange(x.shape[0], dtype=x.dtype)[:, None] / x.shape[0]
        hidden = torch.tanh(self.layer(x) + positions) * self.scale
        return hidden[hidden.sum(1) > 0].square().sum() + torch.zeros(()) + hidden.mean()


def test_a_wrapped_module_is_eager():
    torch.manual_seed(0)
    eager = Masked().double()
    wrapped = ORTModule(copy.deepcopy(eager))
    for rows in (5, 3, 5, 8):
        x = torch.randn(rows, 6, dtype=torch.float64)
        losses = [module(x) for module in (eager, wrapped)]
        for loss in losses:
            loss.backward()
        torch.testing.assert_close(losses[1], losses[0])
    for ours, theirs in zip(wrapped.parameters(), eager.parameters(), strict=True):
        assert ours.grad.is_cuda
        torch.testing.assert_close(ours.grad, theirs.grad)


def test_a_trainer_trains_on_it():
    torch.manual_seed(0)
    net = Net()
    reference = copy.deepcopy(net)
    trainer = ORTTrainer(net, DESC, optim.SGDConfig(lr=0.1), token_loss)
    optimizer = torch.optim.SGD(reference.parameters(), lr=0.1)
    for _ in range(3):
        x, y = torch.randint(0, 11, (2, 2, 7))
        loss = trainer.train_step(x, y)[0]
        optimizer.zero_grad()
        wanted = token_loss(reference(x), y)
        wanted.backward()
        optimizer.step()
        torch.testing.assert_close(torch.as_tensor(loss).cpu(), wanted.detach().cpu(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("provider", ["CPUExecutionProvider", "TorchExecutionProvider"])
def test_a_session_stays_where_its_provider_says(provider, tmp_path):
    network = nn.Sequential(nn.Linear(6, 4), nn.Tanh()).cpu()
    file = tmp_path / "model.onnx"
    x = torch.randn(3, 6, device="cpu")
    with torch.device("cpu"):
        torch.onnx.export(network, (x,), file, dynamo=False, input_names=["x"], output_names=["y"])
    session = ort.InferenceSession(str(file), providers=[provider])
    (y,) = session.run(None, {"x": x.numpy()})
    with torch.no_grad():
        np.testing.assert_allclose(y, network(x).numpy(), rtol=1e-5, atol=1e-6)
