"""Pieces that are more than a module's forward: steps of optimizers, gradients inside, checkpoints, `.data`."""

from __future__ import annotations

import copy
import warnings
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from ontrain.training.compiled import ontrain

WITHOUT_FALLBACK = {"fallback": "FALLBACK_DISABLE"}


@pytest.fixture(autouse=True)
def _fresh():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 6), nn.GELU(), nn.Linear(6, 3)).double()


def batch(step, size=5):
    generator = torch.Generator().manual_seed(step)
    x = torch.randn(size, 6, generator=generator, dtype=torch.float64)
    return x, torch.randint(3, (size,), generator=generator)


def compiles(function, **options):
    return torch.compile(function, backend=ontrain, options=options)


def assert_alike(ours, eager):
    torch.testing.assert_close(ours.state_dict(), eager.state_dict(), rtol=1e-9, atol=1e-12)


OPTIMIZERS = {
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1),
}


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_a_compiled_step_of_an_optimizer_is_made_once_and_by_pytorch(kind):
    ours, eager = network(), network()
    optimizers = [OPTIMIZERS[kind](model.parameters()) for model in (ours, eager)]
    # TorchDynamo reads the step number as a tensor, of torch's default dtype, and eager PyTorch as a number.
    steps = compiles(optimizers[0].step), torch.compile(optimizers[1].step, backend="eager")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for step in range(3):
            for model, optimizer, update in zip((ours, eager), optimizers, steps, strict=True):
                optimizer.zero_grad()
                x, label = batch(step)
                F.cross_entropy(model(x), label).backward()
                update()
            assert_alike(ours, eager)
    assert any("as an optimizer's step does" in str(each.message) for each in caught)
    states = [list(optimizer.state_dict()["state"].values()) for optimizer in optimizers]
    torch.testing.assert_close(states[0], states[1])


def test_a_whole_compiled_training_step_is_eagers():
    def step_of(model):
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

        def step(x, label):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), label)
            loss.backward()
            optimizer.step()
            return loss.detach()

        return step

    ours, eager = network(), network()
    compiled_step, eager_step = compiles(step_of(ours)), torch.compile(step_of(eager), backend="eager")
    for step in range(4):
        torch.testing.assert_close(compiled_step(*batch(step)), eager_step(*batch(step)), rtol=1e-9, atol=1e-12)
        assert_alike(ours, eager)


def test_a_function_may_ask_for_gradients_inside():
    def penalty_of(model):
        def penalty(x):
            x = x.detach().requires_grad_()
            (gradient,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
            return gradient.square().sum()

        return penalty

    ours, eager = network(), network()
    functions = compiles(penalty_of(ours)), penalty_of(eager)
    for step in range(3):
        x, _ = batch(step)
        penalties = [function(x) for function in functions]
        torch.testing.assert_close(*penalties, rtol=1e-9, atol=1e-12)
        for value in penalties:
            value.backward()
        for mine, theirs in zip(ours.parameters(), eager.parameters(), strict=True):
            torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-9, atol=1e-12)


DERIVATIVES = {
    "gradient": torch.func.grad,
    "gradients of rows": lambda f: lambda x: torch.vmap(torch.func.grad(lambda row: f(row[None])))(x),
    "jacobian": lambda f: torch.func.jacrev(lambda x: f(x) * x),
    "hessian": torch.func.hessian,
    "product with a vector": lambda f: lambda x: torch.func.jvp(f, (x,), (2 * x,))[1],
}


@pytest.mark.sampled(2)
@pytest.mark.filterwarnings("ignore:.*differentiates by torch.func")
@pytest.mark.parametrize("kind", DERIVATIVES)
def test_a_function_may_differentiate_by_torch_func(kind):
    ours, eager = network(), network()

    def differentiated(model):
        derive = DERIVATIVES[kind]
        return lambda x: derive(lambda x: model.eval()(x).square().sum())(x).square().sum()

    x, _ = batch(0)
    values = [compiles(differentiated(ours))(x), differentiated(eager)(x)]
    torch.testing.assert_close(*values, rtol=1e-9, atol=1e-12)
    for value in values:
        value.backward()
    for mine, theirs in zip(ours.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-9, atol=1e-12)


class Checkpointed(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.last = network(), nn.Linear(3, 3).double()

    def forward(self, x):
        return self.last(checkpoint(self.body, x, use_reentrant=False))


class Quantised(nn.Module):
    """A codebook that follows what is quantised, written to through `.data` as vector-quantising layers do."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(6, 4).double(), nn.Linear(4, 3).double()
        self.register_buffer("codes", torch.randn(5, 4, dtype=torch.float64))

    def forward(self, x):
        z = self.first(x)
        chosen = F.one_hot(torch.cdist(z, self.codes).argmin(1), 5).to(z)
        quantised = chosen @ self.codes
        self.codes.data.copy_(0.9 * self.codes + 0.1 * (chosen.T @ z.data))
        return self.last(z + (quantised - z).detach()) / z.data.abs().max()


@pytest.mark.parametrize("kind", [Checkpointed, Quantised])
def test_a_forward_is_one_of_our_graphs_with(kind):
    torch.manual_seed(1)
    ours = kind()
    eager = copy.deepcopy(ours)
    model = compiles(ours, **WITHOUT_FALLBACK)
    optimizers = [torch.optim.SGD(module.parameters(), lr=0.1) for module in (ours, eager)]
    for step in range(4):
        for module, optimizer in zip((model, eager), optimizers, strict=True):
            optimizer.zero_grad()
            x, label = batch(step, size=5 + step % 2)
            F.cross_entropy(module(x), label).backward()
            optimizer.step()
        assert_alike(ours, eager)


def test_a_write_through_data_to_an_input_reaches_it():
    model = network()

    def doubled(x):
        x.data.mul_(2)
        return model(x).square().sum()

    x, _ = batch(0)
    result, wanted = compiles(doubled)(x), model(batch(0)[0] * 2).square().sum()
    torch.testing.assert_close(x, batch(0)[0] * 2)
    torch.testing.assert_close(result, wanted)


def test_threads_compile_and_train_models_of_their_own():
    models = [network() for _ in range(3)]
    wanted = copy.deepcopy(models)

    def train(model, module):
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
        for step in range(3):
            optimizer.zero_grad()
            x, label = batch(step, size=5 + step % 2)
            F.cross_entropy(model(x), label).backward()
            optimizer.step()

    with warnings.catch_warnings(), ThreadPoolExecutor(3) as pool:
        warnings.simplefilter("error", UserWarning)
        list(pool.map(train, map(compiles, models), models))
    for ours, eager in zip(models, wanted, strict=True):
        train(eager, eager)
        assert_alike(ours, eager)
