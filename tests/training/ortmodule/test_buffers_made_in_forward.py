"""What forward makes at its first call, or anew for longer inputs, is there as eager's is: buffers and parameters."""

import copy

import pytest
import torch
from torch import nn

from ontrain.errors import CaptureError
from ontrain.training.ortmodule import ORTModule
from tests.training.ortmodule.networks import assert_same_gradients, pair


class Distances(nn.Module):
    """Keeps a bias by distance, which grows with the longest input so far."""

    def __init__(self, first=None):
        super().__init__()
        self.a, self.norm = nn.Linear(4, 4), nn.BatchNorm1d(4)
        self.register_buffer("bias", first, persistent=False)
        self.double()

    def forward(self, x):
        length = x.shape[1]
        if self.bias is None or self.bias.shape[-1] < length:
            places = torch.arange(length, dtype=x.dtype)
            self.bias = -(places[:, None] - places).abs()
        h = self.norm(self.a(x).transpose(1, 2)).transpose(1, 2)
        return (h @ h.transpose(1, 2) + self.bias[:length, :length]).softmax(-1) @ h


class Counted(nn.Module):
    """Keeps what it saw last: forward depends on it."""

    def __init__(self):
        super().__init__()
        self.a = nn.Linear(4, 4)
        self.register_buffer("last", None)

    def forward(self, x):
        h = self.a(x)
        result = h if self.last is None else h + self.last.mean()
        self.last = h.detach()
        return result


@pytest.mark.sampled(2)
@pytest.mark.parametrize("first", [None, torch.zeros(1, 1)], ids=["made", "grown"])
def test_tables_that_grow_with_the_longest_input(first):
    eager = Distances(first)
    ours = ORTModule(copy.deepcopy(eager))
    for length in (3, 5, 4, 5, 7, 2):
        x = torch.randn(2, length, 4, dtype=torch.float64)
        for module in (eager, ours):
            module.zero_grad()
            module(x).pow(2).sum().backward()
        torch.testing.assert_close(ours(x), eager(x), rtol=1e-9, atol=1e-9)
        for actual, wanted in zip(ours.parameters(), eager.parameters(), strict=True):
            torch.testing.assert_close(actual.grad, wanted.grad, rtol=1e-9, atol=1e-9)
        for (name, actual), (_, wanted) in zip(ours.named_buffers(), eager.named_buffers(), strict=True):
            torch.testing.assert_close(actual, wanted, rtol=1e-9, atol=1e-9, msg=name)


class Begun(nn.Module):
    """Begins with the deviation of the first batch, as an ActNorm does."""

    def __init__(self):
        super().__init__()
        self.scale, self.norm = nn.Parameter(torch.zeros(4)), nn.BatchNorm1d(4)
        self.register_buffer("ready", torch.tensor(False))
        self.begun = False
        self.double()

    def forward(self, x):
        if self.training and not self.is_begun():
            self.begin(-x.std(0).log())
            self.mark()
        return self.norm(x * self.scale.exp()), self.scale.sum()

    def is_begun(self):
        return self.ready

    def begin(self, scale):
        with torch.no_grad():
            self.scale.copy_(scale)

    def mark(self):
        self.ready.fill_(True)


class BegunByData(Begun):
    def begin(self, scale):
        self.scale.data = scale.data

    def mark(self):
        self.ready = torch.tensor(1.0)


class BegunByAttribute(Begun):
    def is_begun(self):
        return self.begun

    def begin(self, scale):
        self.scale.data.copy_(scale)

    def mark(self):
        self.begun = True


@pytest.mark.parametrize("kind", [Begun, BegunByData, BegunByAttribute])
def test_parameters_that_begin_from_the_first_batch(kind):
    eager = kind()
    ours = ORTModule(copy.deepcopy(eager))
    scale = ours.scale
    modules = eager, ours
    optimizers = [torch.optim.SGD(module.parameters(), lr=0.1) for module in modules]
    for rows in (6, 7, 6):
        x = 3 * torch.randn(rows, 4, dtype=torch.float64) + 1
        weight = torch.randn(rows, 4, dtype=torch.float64)
        results = []
        for module, optimizer in zip(modules, optimizers, strict=True):
            y, total = module(x)
            optimizer.zero_grad()
            ((y * weight).sum() + total).backward()
            optimizer.step()
            results.append(y.detach())
        torch.testing.assert_close(*results, rtol=1e-9, atol=1e-9)
        for (name, actual), (_, wanted) in zip(ours.state_dict().items(), eager.state_dict().items(), strict=True):
            torch.testing.assert_close(actual, wanted, rtol=1e-9, atol=1e-9, msg=name)
    assert ours.scale is scale and ours.begun == eager.begun


def test_what_is_written_to_parameters_beside_attributes_at_each_call_is_refused_and_undone():
    class Clamped(Begun):
        def is_begun(self):
            return False

        def begin(self, scale):
            self.scale.data.clamp_(-1, 1)

        def mark(self):
            self.begun = self.begun + 1

    ours = ORTModule(Clamped())
    with torch.no_grad():
        ours.scale.fill_(3)
    with pytest.raises(CaptureError, match=r"parameter 'scale'[\s\S]*begin[\s\S]*once before it is wrapped"):
        ours(torch.randn(6, 4, dtype=torch.float64))
    assert (ours.scale == 3).all() and not ours.begun


def test_what_the_next_call_depends_on_is_refused():
    ours = ORTModule(Counted())
    with pytest.raises(CaptureError, match="gives buffer 'last' of Counted another shape"):
        ours(torch.randn(2, 4))
    assert ours.last is None


class Spiking(nn.Module):
    """A neuron whose state begins anew in each call, as a buffer of the batch's shape that autograd knows of."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 3)
        self.register_buffer("membrane", torch.zeros(0))

    def forward(self, x):
        self.membrane = torch.zeros_like(self.membrane)
        steps = []
        for _ in range(3):
            current = self.linear(x)
            if self.membrane.shape != current.shape:
                self.membrane = torch.zeros_like(current)
            self.membrane = 0.9 * self.membrane + current
            steps.append(self.membrane)
        return torch.stack(steps)


def step_alike(ours, eager, rows):
    """Run both forwards and backwards; results, gradients and states are the same."""
    x = torch.randn(rows, 4, dtype=torch.float64)
    for module in (ours, eager):
        module.zero_grad()
    y, expected = ours(x), eager(x)
    torch.testing.assert_close(y, expected)
    y.square().sum().backward()
    expected.square().sum().backward()
    assert_same_gradients(ours, eager, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(ours.membrane, eager.membrane.detach())


def test_a_state_of_the_batchs_shape_that_each_call_begins_anew():
    ours, eager = pair(Spiking().double())
    for rows in (2, 2, 3, 2):
        step_alike(ours, eager, rows)


def test_batches_in_turns_are_captured_once_for_each_size():
    ours, eager = pair(Spiking().double())
    captures = []
    for rows in (2, 3, 2, 3, 4, 2, 3, 4):
        step_alike(ours, eager, rows)
        with torch.no_grad():
            for own, other in zip(ours.parameters(), eager.parameters(), strict=True):
                own -= 0.1 * own.grad
                other.copy_(own)
        captures.append(ours._engine.captures)
    assert captures[1] == captures[3] and captures[4] == captures[7]


def test_a_buffer_replaced_in_between_is_read():
    class Weighted(Spiking):
        def __init__(self):
            super().__init__()
            self.register_buffer("weight", torch.ones(3))

        def forward(self, x):
            return super().forward(x) * self.weight

    ours, eager = pair(Weighted().double())
    for step, rows in enumerate((2, 3, 2, 3)):
        for module in (ours, eager):
            module.weight = torch.full((3,), 1.0 + step, dtype=torch.float64)
        x = torch.randn(rows, 4, dtype=torch.float64)
        torch.testing.assert_close(ours(x), eager(x))
