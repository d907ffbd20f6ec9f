"""Every provider runs an ORTModule: natively, or as a forward and a backward graph."""

import pytest
import torch

from ontrain import OptionError
from ontrain.providers import available_providers
from ontrain.training.ortmodule import ORTModule
from tests.training.ortmodule.networks import LanguageModel, Perceptron, assert_same_gradients


@pytest.mark.parametrize("provider", available_providers())
def test_gradients_and_statistics(provider):
    torch.manual_seed(0)
    eager = Perceptron()
    ours = ORTModule(Perceptron(), provider=provider)
    ours.load_state_dict(eager.state_dict())
    for rows in (5, 4, 5):
        x = torch.randn(rows, 6)
        y, z = x.clone().requires_grad_(), x.clone().requires_grad_()
        for module, leaf in ((ours, y), (eager, z)):
            module.zero_grad()
            loss = module(leaf).square().sum()
            loss.backward(retain_graph=True)
            loss.backward()
        assert_same_gradients(ours, eager, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(y.grad, z.grad, rtol=1e-4, atol=1e-5)
    for mine, theirs in zip(ours.buffers(), eager.buffers(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("provider", available_providers())
def test_a_few_updates_of_a_language_model(provider):
    torch.manual_seed(0)
    eager = LanguageModel(layers=1)
    ours = ORTModule(LanguageModel(layers=1), provider=provider)
    ours.load_state_dict(eager.state_dict())
    losses = []
    for module in (ours, eager):
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
        for step in range(3):
            ids = torch.randint(0, 20, (2, 5 + step % 2), generator=torch.Generator().manual_seed(step))
            optimizer.zero_grad()
            loss, _ = module(ids, ids)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    assert losses[:3] == pytest.approx(losses[3:], rel=1e-5)


@pytest.mark.parametrize("provider", available_providers())
def test_dropout_repeats_with_torchs_seed(provider):
    ours = ORTModule(Perceptron(dropout=0.5), provider=provider)
    x = torch.randn(32, 6)
    outputs = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        outputs.append(ours(x).detach())
    assert torch.equal(outputs[0], outputs[1]) and not torch.equal(outputs[0], outputs[2])


def test_an_unknown_provider():
    with pytest.raises(OptionError, match="TorchExecutionProvider"):
        ORTModule(Perceptron(), provider="TorchExecutionprovider")


@pytest.mark.parametrize("provider", ["TorchExecutionProvider", "OnnxRuntimeExecutionProvider"])
def test_draws_in_forward_follow_torchs_seed(provider):
    class Drawing(torch.nn.Module):
        def forward(self, x):
            return x * torch.bernoulli(torch.full_like(x, 0.5))

    ours = ORTModule(Drawing(), provider=provider)
    outputs = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        outputs.append(ours(torch.ones(64)))
    assert torch.equal(outputs[0], outputs[1]) and not torch.equal(outputs[0], outputs[2])
