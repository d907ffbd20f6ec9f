"""Modules of unusual shape: what onnxruntime's users brought to its ORTModule."""

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from ontrain.training.ortmodule import ORTModule
from tests.training.ortmodule.networks import Perceptron, assert_same_gradients, gradients, pair

DOUBLE = dict(rtol=1e-9, atol=1e-11)


def x64(*shape):
    return torch.randn(shape, dtype=torch.float64)


def compare(module, *inputs, take=lambda y: y.square().sum()):
    ours, eager = pair(module.double())
    results = []
    for variant in (ours, eager):
        result = take(variant(*inputs))
        result.backward()
        results.append(result.detach())
    torch.testing.assert_close(*results, **DOUBLE)
    assert_same_gradients(ours, eager, **DOUBLE)
    return ours, eager


def test_a_parameter_that_forward_does_not_use_gets_no_gradient():
    class Unused(Perceptron):
        def __init__(self):
            super().__init__()
            self.extra = nn.Linear(3, 3)

    ours, _ = compare(Unused(), x64(4, 6))
    assert ours.extra.weight.grad is None


def test_a_module_without_parameters():
    ours = ORTModule(nn.Sequential(nn.Tanh(), nn.Softmax(-1)))
    x = x64(3, 4).requires_grad_()
    ours(x).square().sum().backward()
    y = x.detach().clone().requires_grad_()
    torch.softmax(torch.tanh(y), -1).square().sum().backward()
    torch.testing.assert_close(x.grad, y.grad, **DOUBLE)


def test_results_that_are_inputs_or_parameters():
    class Passing(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(3))

        def forward(self, x):
            return x, self.weight, x * self.weight

    x = x64(2, 3).requires_grad_()
    ours, _ = pair(Passing().double())
    same, weight, product = ours(x)
    (same.sum() + 2 * weight.sum() + product.sum()).backward()
    torch.testing.assert_close(x.grad, 1 + ours.weight.detach().expand(2, 3), **DOUBLE)
    torch.testing.assert_close(ours.weight.grad, 2 + x.detach().sum(0), **DOUBLE)


def test_adjoints_of_any_layout():
    compare(Perceptron(), x64(4, 6), take=lambda y: y.sum())  # expanded from one number
    compare(Perceptron(), x64(4, 6), take=lambda y: (y.t() * torch.arange(12.0).view(3, 4)).sum())


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.bool])
def test_inputs_that_are_no_floats(dtype):
    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(3, 2)

        def forward(self, n):
            return self.linear(n.double())

    compare(Counting(), torch.randint(0, 2, (4, 3)).to(dtype))


def test_a_module_inside_a_plain_one():
    class Outer(nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.before, self.inner, self.after = nn.Linear(6, 6), inner, nn.Linear(3, 1)

        def forward(self, x):
            return self.after(torch.relu(self.inner(torch.tanh(self.before(x)))))

    torch.manual_seed(0)
    ours = Outer(ORTModule(Perceptron())).double()
    torch.manual_seed(0)
    eager = Outer(Perceptron()).double()
    assert list(ours.state_dict()) == list(eager.state_dict())
    assert [n for n, _ in ours.named_parameters()] == [n for n, _ in eager.named_parameters()]
    other = Outer(Perceptron()).double().state_dict()
    for module in (ours, eager):
        module.load_state_dict(other)
        for training in (True, False):
            module.train(training)
            module(torch.ones(4, 6, dtype=torch.float64) * torch.arange(6)).sum().backward()
    assert_same_gradients(ours, eager, **DOUBLE)


def test_two_modules_in_one_loop():
    first, second = pair(Perceptron(6, 8, 6).double()), pair(Perceptron(6, 8, 3).double())
    x = x64(5, 6)
    for a, b in zip(first, second, strict=True):
        (b(a(x)) + b(x)).square().sum().backward()
    assert_same_gradients(*first, **DOUBLE)
    assert_same_gradients(*second, **DOUBLE)


def test_one_module_called_on_its_own_result():
    ours, eager = pair(Perceptron(6, 8, 6).double())
    x = x64(5, 6)
    for module in (ours, eager):
        module(module(module(x))).square().sum().backward()
    assert_same_gradients(ours, eager, **DOUBLE)


def test_a_buffer_that_forward_reads_and_writes():
    class Averaging(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(3, 3)
            self.register_buffer("mean", torch.ones(3))

        def forward(self, x):
            y = self.linear(x)
            result = y * self.mean
            self.mean = 0.5 * self.mean + 0.5 * y.detach().mean(0)
            return result

    ours, eager = pair(Averaging().double())
    for module in (ours, eager):
        torch.manual_seed(0)
        losses = [module(x64(4, 3)).square().sum() for _ in range(3)]
        losses[1].backward(retain_graph=True)
        sum(losses[:1]).backward()
        losses[2].backward()
        losses[1].backward()  # for the second time, when the buffer is another
    torch.testing.assert_close(ours.mean, eager.mean, **DOUBLE)
    assert_same_gradients(ours, eager, **DOUBLE)


def test_checkpointed_blocks():
    class Checkpointed(Perceptron):
        def forward(self, x):
            hidden = checkpoint(lambda t: torch.tanh(self.first(t)), x, use_reentrant=False)
            return self.second(hidden)

    compare(Checkpointed(), x64(4, 6))


def test_layers_of_torch():
    class Layers(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(10, 8, padding_idx=0)
            self.encoder = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
            self.rnn = nn.LSTM(8, 4, batch_first=True, bidirectional=True)
            self.conv = nn.Conv1d(8, 3, 3, padding=1)

        def forward(self, ids):
            y, _ = self.rnn(self.encoder(self.embed(ids)))
            return self.conv(y.transpose(1, 2)).mean(-1)

    compare(Layers(), torch.randint(0, 10, (3, 5)))


def test_weights_under_a_parametrization():
    module = Perceptron()
    nn.utils.parametrizations.weight_norm(module.first)
    ours, _ = compare(module, x64(4, 6))
    assert "first.parametrizations.weight.original0" in gradients(ours)


def test_an_autograd_function_of_the_users_own():
    class Doubled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 1

        @staticmethod
        def backward(ctx, dy):
            return dy * 2

    class Custom(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(3, 2)

        def forward(self, x):
            return Doubled.apply(self.linear(x))

    compare(Custom(), x64(4, 3))


def test_many_outputs_of_which_few_are_used():
    class Wide(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(3, 3) for _ in range(4))

        def forward(self, x):
            states = [x]
            for layer in self.layers:
                states.append(torch.tanh(layer(states[-1])))
            return states

    ours, eager = pair(Wide().double())
    x = x64(2, 3)
    for used in ([4], [2], [1, 3], [4]):
        for module in (ours, eager):
            module.zero_grad()
            states = module(x)
            sum(states[i].square().sum() for i in used).backward()
        assert_same_gradients(ours, eager, **DOUBLE)
