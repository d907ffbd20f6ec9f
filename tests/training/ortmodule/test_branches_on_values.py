"""Modules that branch on the values of tensors: each path is a graph, and a call takes eager's."""

import copy
import warnings

import pytest
import torch
from torch import nn
from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex

from ontrain.errors import CaptureError
from ontrain.session import ModuleSession
from ontrain.training import ORTTrainer, optim
from ontrain.training.ortmodule import ORTModule, paths

FORWARDS = {}


def forward(function):
    FORWARDS[function.__name__] = function
    return function


class Layers(nn.Module):
    def __init__(self, forward):
        super().__init__()
        self.a, self.b, self.norm = nn.Linear(4, 4), nn.Linear(4, 4), nn.BatchNorm1d(4)
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.double()
        self._forward = forward

    def forward(self, x, ids):
        return self._forward(self, x, ids)


@forward
def by_a_sum(self, x, ids):
    h = self.norm(self.a(x))
    if x.sum() > 0:
        h = self.b(h)
    elif ids[0] == 2:
        h = h * 3
    return h


@forward
def by_the_number_of_rows(self, x, ids):
    rows = (ids == 2).nonzero()[:, 0]
    if len(rows) == 0:
        return self.a(x).sum() * 2
    return self.b(x[rows]).pow(2).sum()


@forward
def what_torch_asks_of_rows_again_where_it_rewrites_the_trace(self, x, ids):
    rows, others = (ids > 0).nonzero()[:, 0], (ids < 2).nonzero()[:, 0]
    if len(rows) > 0 and len(others) > 0:
        return torch.deg2rad(torch.logsumexp(self.b(x)[rows] @ self.b(x)[others].T, 1))
    return self.a(x)


@forward
def by_a_buffer(self, x, ids):
    self.calls += 1
    return self.b(self.norm(self.a(x))) if self.calls > 3 else self.norm(self.a(x))


@forward
def as_often_as_a_number_says(self, x, ids):
    for _ in range(int(ids.max())):
        x = torch.tanh(self.a(x))
    return x


@forward
def as_often_as_a_fraction_says(self, x, ids):
    for _ in range(int(x.abs().max())):
        x = torch.tanh(self.a(x))
    return x


@forward
def until_it_is_small(self, x, ids):
    h = self.a(x)
    while h.abs().max() > 0.3:
        h = h * 0.5
    return self.b(h)


@forward
def by_a_number_taken_out(self, x, ids):
    share = (ids > 1).double().mean().item()
    return self.a(x) if share > 0.5 else self.b(x) * share


@forward
def by_equality(self, x, ids):
    if torch.equal(ids, ids.sort()[0]) or torch.allclose(x, x.abs()):
        return self.a(x)
    return self.b(x) if ids.equal(ids.roll(1)) else self.norm(self.b(x))


@forward
def places_in_a_list(self, x, ids):
    layers = [self.a, self.b, self.norm]
    for at in ids[:2].tolist():
        x = layers[at](x)
    return x


@forward
def by_each_of_the_rows_that_are_there(self, x, ids):
    total = x.sum() * 0
    for row in self.a(x)[ids > 0]:
        total = total + row.pow(2).sum()
    return total


@forward
def steps_up_to_a_number(self, x, ids):
    grid = torch.arange(0, torch.ceil(ids.double().mean() + 1).item(), dtype=x.dtype)
    for at in grid:
        x = torch.tanh(self.a(x)) * (at + 1)
    return x


@forward
def a_loss_and_what_is_looked_at(self, x, ids):
    h = self.a(x)
    return (h.sum() if h[0, 0] > 0 else h.pow(2).sum()), h


@forward
def by_the_most_rows_of_a_group(self, x, ids):
    group = ids.sort()[0]
    groups = int(group.max()) + 1
    counts = torch.zeros(groups, dtype=torch.int64).scatter_add(0, group, torch.ones_like(group))
    starts = counts.new_empty(groups + 1)
    starts.narrow(0, 0, 1).zero_()
    torch.cumsum(counts, 0, out=starts.narrow(0, 1, groups))
    most = int(counts.max())
    beside = x.new_full([groups * most, 4], 0.5)
    beside[torch.arange(x.shape[0]) - starts[group] + group * most] = self.a(x)
    beside = beside.view(groups, most, 4)
    return (self.b(beside) if most > 2 else beside).expand(groups, most, 4).transpose(1, 2).softmax(-1).sum(-1)


@forward
def by_draws_that_change_nothing(self, x, ids):
    layers = [self.a, self.b]
    if torch.rand(()) < 0.0 or torch.rand(1).item() <= 0.0 or not torch.rand(2).mul(3).sub(1)[0] < 3:
        x = self.norm(x)
    chosen = layers[int(torch.empty(1).uniform_(0.0, 1.0).item())]
    return chosen(x) if torch.rand_like(x)[0, 0] >= 0 else x


@forward
def by_sizes_of_what_was_drawn(self, x, ids):
    h = (self.a(x) + 0 * torch.randn_like(x))[ids > 0]
    return (h - self.b(x)[ids > 0]).abs().sum() if len(h) == len(x[ids > 0]) else h.sum()


@forward
def that_fails_off_its_path(self, x, ids):
    if ids.max() < 2:
        return self.a(x)[:, :2][:, ids]
    return self.b(x)


def step(module, x, ids):
    """What a forward gives, the gradients of a scalar of it, and the buffers."""
    module.zero_grad()
    x = x.clone().requires_grad_()
    results = module(x, ids)
    results = results if isinstance(results, tuple) else (results,)
    results[0].pow(2).sum().backward()
    gradients = [p.grad if p.grad is not None else torch.zeros_like(p) for p in (x, *module.parameters())]
    return [r.detach() for r in results] + gradients + [b.clone() for b in module.buffers()]


def batches(count):
    generator = torch.Generator().manual_seed(count)
    for at in range(count):
        rows = (5, 6, 5)[at % 3]
        x = torch.randn(rows, 4, dtype=torch.float64, generator=generator)
        yield x, torch.randint(0, 1 + at % 3, (rows,), generator=generator)


def close(actual, wanted):
    torch.testing.assert_close(actual, wanted, rtol=1e-9, atol=1e-9)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", FORWARDS)
def test_values_gradients_and_buffers_are_eagers(name):
    eager = Layers(FORWARDS[name])
    ours = ORTModule(copy.deepcopy(eager))
    for batch in batches(12):
        for actual, wanted in zip(step(ours, *batch), step(eager, *batch), strict=True):
            close(actual, wanted)


@pytest.fixture
def _looks_ahead(monkeypatch):
    monkeypatch.setattr(paths, "_ends_at_errors", lambda device: True)


@pytest.mark.sampled(4)
@pytest.mark.usefixtures("_looks_ahead")
@pytest.mark.parametrize("name", FORWARDS)
def test_conditions_are_asked_first_where_an_error_ends_the_device(name):
    test_values_gradients_and_buffers_are_eagers(name)


@pytest.mark.usefixtures("_looks_ahead")
def test_a_path_is_left_before_its_indices_are_out_of_range(monkeypatch):
    def by_the_largest(self, x, ids):
        table = torch.arange(20.0, dtype=torch.float64)
        if ids.max() < 5:
            return self.a(x) * table[:5][ids][:, None]
        if ids.min() < 9:
            return self.b(x) * table[:10][ids][:, None]
        return self.b(self.a(x)) * table[ids][:, None]

    eager = Layers(by_the_largest)
    ours, errors, forward = ORTModule(copy.deepcopy(eager)), list[Exception](), ModuleSession.forward

    def watched(session, *args):
        try:
            return forward(session, *args)
        except Exception as error:
            errors.append(error)
            raise

    monkeypatch.setattr(ModuleSession, "forward", watched)
    x = torch.randn(3, 4, dtype=torch.float64)
    for ids in ([1, 2, 3], [1, 7, 3], [11, 12, 15], [4, 0, 1], [19, 9, 9], [9, 8, 9]):
        for actual, wanted in zip(step(ours, x, torch.tensor(ids)), step(eager, x, torch.tensor(ids)), strict=True):
            close(actual, wanted)
    assert ours._engine.captures == 3 and not errors


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", FORWARDS)
def test_evaluation_without_gradients(name):
    eager = Layers(FORWARDS[name]).eval()
    ours = ORTModule(copy.deepcopy(eager))
    for batch in batches(6):
        with torch.no_grad():
            close(ours(*batch), eager(*batch))


def test_each_path_is_captured_once():
    ours = ORTModule(Layers(by_the_number_of_rows))
    x = torch.randn(5, 4, dtype=torch.float64)
    for chosen in (0, 2, 3, 0, 0, 5, 1, 0):
        ours(x, torch.tensor([2] * chosen + [0] * (5 - chosen)))
    assert ours._engine.captures == 2
    first, second = ours._engine.entries
    (condition,) = first.decisions.conditions
    assert "test_branches_on_values.py" in condition.source and "len(rows) == 0" in condition.source
    assert len(second.decisions.conditions) == 1


def test_no_condition_is_kept_of_a_check():
    def checked(self, x, ids):
        if ids.max() > 4:
            raise ValueError("out of range")
        return self.a(x) if ids[0] == 0 else self.b(x)

    ours = ORTModule(Layers(checked))
    ours(torch.randn(5, 4, dtype=torch.float64), torch.zeros(5, dtype=torch.int64))
    assert [len(entry.decisions.conditions) for entry in ours._engine.entries] == [1]


def test_forwards_before_backwards():
    eager = Layers(by_a_sum)
    ours = ORTModule(copy.deepcopy(eager))
    data = list(batches(4))
    for module in (eager, ours):
        outputs = [module(*batch) for batch in data]
        for weight, output in enumerate(outputs):
            (output.pow(2).sum() * (weight + 1)).backward(retain_graph=True)
        outputs[0].sum().backward()
    for actual, wanted in zip(ours.parameters(), eager.parameters(), strict=True):
        close(actual.grad, wanted.grad)


def test_an_error_of_the_module_is_raised():
    ours = ORTModule(Layers(that_fails_off_its_path))
    x = torch.randn(5, 4, dtype=torch.float64)
    ours(x, torch.tensor([0, 1, 0, 1, 0]))
    with pytest.raises((IndexError, RuntimeError, ValueError), match="out of|index"):
        ours(x, torch.tensor([0, -7, 0, 1, 0]))


def test_a_branch_on_numbers_drawn_at_random_is_refused():
    def dropping(self, x, ids):
        return self.a(x) if 1 - torch.rand(()) < 0.5 else self.b(x)

    with pytest.raises(CaptureError, match="drawn at random") as refusal:
        ORTModule(Layers(dropping))(torch.randn(5, 4, dtype=torch.float64), torch.arange(5))
    assert "1 - torch.rand(()) < 0.5" in str(refusal.value)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("draw", [
    lambda x: torch.rand(2)[0].item() < 1e-6, lambda x: torch.rand(()) * 2 > 1, lambda x: torch.randn(()) < -100,
    lambda x: x.mean() * torch.rand(()) < 0.0, lambda x: int(torch.rand(1) * 2),
])  # fmt: skip
def test_a_draw_that_may_decide_is_refused(draw):
    with pytest.raises(CaptureError, match="drawn at random"):
        ORTModule(Layers(lambda self, x, ids: self.a(x) if draw(x) else self.b(x)))(
            torch.randn(5, 4, dtype=torch.float64), torch.arange(5)
        )


def test_many_paths_are_warned_of():
    ours = ORTModule(Layers(as_often_as_a_number_says))
    x = torch.randn(5, 4, dtype=torch.float64)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for count in range(1, 11):
            ours(x, torch.full((5,), count))
    texts = [str(w.message) for w in caught if "paths" in str(w.message)]
    assert len(texts) == 1 and "range(int(ids.max()))" in texts[0] and 'breaks="allow"' in texts[0]


def test_a_trainer_refuses_and_names_the_wrapper():
    trainer = ORTTrainer(
        Layers(by_the_number_of_rows),
        {"inputs": [("x", [6, 4]), ("ids", [6])], "outputs": [("loss", [], True)]},
        optim.SGDConfig(lr=0.1),
    )
    with pytest.raises(CaptureError, match="ORTModule"):
        trainer.train_step(torch.randn(6, 4, dtype=torch.float64), torch.arange(6))


def test_a_trainer_takes_a_branch_that_no_draw_can_change():
    torch.manual_seed(0)
    module = Layers(by_draws_that_change_nothing)
    x, ids, label = torch.randn(6, 4, dtype=torch.float64), torch.arange(6), torch.randn(6, 4, dtype=torch.float64)
    expected = nn.functional.mse_loss(module.a(x), label).detach()
    description = {
        "inputs": [("x", [6, 4]), ("ids", [6]), ("label", [6, 4])], "outputs": [("loss", [], True)]
    }  # fmt: skip
    trainer = ORTTrainer(module, description, optim.SGDConfig(lr=0.1), loss_fn=nn.functional.mse_loss)
    torch.testing.assert_close(trainer.train_step(x, ids, label), expected)


class MaskedByFunction(nn.Module):
    """A mask as transformers makes it, by a function of three indices under torch.vmap, and a branch behind it."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x, padding):
        places = torch.arange(x.shape[1])

        def visible(row, query, key):
            return padding[row, key] & (key <= query)

        by_rows = torch.vmap(torch.vmap(torch.vmap(visible, (None, None, 0)), (None, 0, None)), (0, None, None))
        with TransformGetItemToIndex():
            mask = by_rows(torch.arange(x.shape[0]), places, places)
        h = self.layer(x)
        if not bool(padding.all()):
            h = h.tanh()
        return (h @ h.mT).masked_fill(~mask, -1e9).softmax(-1) @ h


def test_a_mask_of_a_function_of_indices_before_a_branch():
    eager = MaskedByFunction().double()
    ours = ORTModule(copy.deepcopy(eager))
    padding = torch.ones(3, 6, dtype=torch.bool)
    padding[0, 3:] = False
    for x, present in ((torch.randn(2, 5, 4), padding[1:, :5]), (torch.randn(3, 6, 4), padding)):
        for module in (ours, eager):
            module.zero_grad()
            module(x.double(), present).square().sum().backward()
        torch.testing.assert_close(ours.layer.weight.grad, eager.layer.weight.grad)


class BranchingOnAGradient(nn.Module):
    """Takes a way by a gradient that it asks for itself."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x):
        y = self.layer(x.detach().requires_grad_()).square().sum()
        (gradient,) = torch.autograd.grad(y, self.layer.weight, create_graph=True)
        return y * 2 if gradient.sum() > 0 else y


def test_a_refusal_does_not_send_those_to_ortmodule_who_are_there():
    with pytest.raises(CaptureError, match="branches on the values") as refusal:
        ORTModule(BranchingOnAGradient())(torch.randn(2, 3))
    assert "train it with ORTModule" not in str(refusal.value) and 'breaks="allow"' in str(refusal.value)
    description = {"inputs": [("x", [2, 3])], "outputs": [("loss", [], True)]}
    with pytest.raises(CaptureError, match="train it with ORTModule"):
        ORTTrainer(BranchingOnAGradient(), description, optim.AdamConfig()).train_step(torch.randn(2, 3))
