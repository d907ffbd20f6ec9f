"""Outputs and gradients of a wrapped module are eager's."""

import collections
import dataclasses

import numpy as np
import pytest
import torch
from torch import nn

from ontrain.training.ortmodule import ORTModule
from tests.training.ortmodule.networks import LanguageModel, Perceptron, assert_same_gradients, pair

DOUBLE = dict(rtol=1e-9, atol=1e-11)


def test_outputs_gradients_and_running_statistics():
    ours, eager = pair(Perceptron().double())
    x, y = (torch.randn(5, 6, dtype=torch.float64).requires_grad_() for _ in range(2))
    y.data.copy_(x.data)
    (a, b) = ours(x), eager(y)
    torch.testing.assert_close(a, b, **DOUBLE)
    a.square().sum().backward()
    b.square().sum().backward()
    assert_same_gradients(ours, eager, **DOUBLE)
    torch.testing.assert_close(x.grad, y.grad, **DOUBLE)
    for (name, mine), theirs in zip(ours.named_buffers(), eager.buffers(), strict=True):
        torch.testing.assert_close(mine, theirs, msg=name, rtol=1e-9, atol=0)


def test_ten_updates_by_a_torch_optimizer():
    ours, eager = pair(LanguageModel().double())
    optimizers = [torch.optim.AdamW(m.parameters(), lr=1e-2) for m in (ours, eager)]
    for _ in range(10):
        ids = torch.randint(0, 20, (2, 7))
        losses = []
        for module, optimizer in zip((ours, eager), optimizers, strict=True):
            optimizer.zero_grad()
            loss, _ = module(ids, ids)
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        torch.testing.assert_close(*losses, **DOUBLE)
    for (name, p), q in zip(ours.named_parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(p, q, msg=name, rtol=1e-7, atol=1e-9)


def test_tied_weight_gets_both_gradients():
    ours, eager = pair(LanguageModel().double())
    ids = torch.randint(0, 20, (2, 7))
    for module in (ours, eager):
        module(ids, ids)[0].backward()
    assert ours.head.weight is ours.embed.weight
    assert_same_gradients(ours, eager, **DOUBLE)


def test_new_shapes_are_planned_and_not_captured_again():
    ours, eager = pair(LanguageModel().double())
    for batch, length in [(2, 7), (3, 5), (2, 9), (2, 7), (4, 2)]:
        ids = torch.randint(0, 20, (batch, length))
        for module in (ours, eager):
            module.zero_grad()
            module(ids, ids)[0].backward()
        assert_same_gradients(ours, eager, **DOUBLE)
    assert ours._engine.captures == 1


def test_a_size_that_the_module_branches_on_is_captured_anew():
    class Branching(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.tensor(2.0, dtype=torch.float64))

        def forward(self, x):
            return (x * self.weight if x.shape[0] > 4 else x / self.weight) + (1 if x.shape[1] % 2 else 0)

    ours, eager = pair(Branching())
    for shape in [(3, 2), (6, 2), (3, 3), (6, 3), (4, 4), (1, 1), (0, 2)]:
        x = torch.randn(shape, dtype=torch.float64)
        for module in (ours, eager):
            module.zero_grad()
            module(x).sum().backward()
        torch.testing.assert_close(ours(x), eager(x), **DOUBLE)
        assert_same_gradients(ours, eager, **DOUBLE)


def test_a_loop_over_a_size():
    class Recurrence(nn.Module):
        def __init__(self):
            super().__init__()
            self.cell = nn.GRUCell(3, 4)

        def forward(self, x):
            state = x.new_zeros(x.shape[1], 4)
            for row in x:
                state = self.cell(row, state)
            return state

    ours, eager = pair(Recurrence().double())
    for length, batch in [(2, 3), (5, 3), (2, 4), (5, 2)]:
        x = torch.randn(length, batch, 3, dtype=torch.float64)
        for module in (ours, eager):
            module.zero_grad()
            module(x).square().sum().backward()
        assert_same_gradients(ours, eager, **DOUBLE)
    assert ours._engine.captures == 2


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_dtypes(dtype):
    ours, eager = pair(LanguageModel(layers=1).to(dtype))
    ids = torch.randint(0, 20, (2, 7))
    for module in (ours, eager):
        module(ids, ids)[0].backward()
    loose = {torch.bfloat16: dict(rtol=0.05, atol=0.01), torch.float16: dict(rtol=0.01, atol=0.002)}
    assert_same_gradients(ours, eager, **loose.get(dtype, dict(rtol=1e-4, atol=1e-6)))


class Result(collections.namedtuple("Result", "loss parts")):
    """A named tuple with a list inside."""


@dataclasses.dataclass
class Outcome:
    loss: torch.Tensor
    name: str = "outcome"


@pytest.mark.parametrize(
    "shape",
    [
        lambda h: h,
        lambda h: (h, h.sum()),
        lambda h: [h, (h.sum(), None)],
        lambda h: {"loss": h.sum(), "hidden": (h, h * 2)},
        lambda h: collections.OrderedDict(loss=h.sum(), h=h),
        lambda h: Result(h.sum(), [h, h * 3]),
        lambda h: Outcome(h.sum()),
        lambda h: (h, h),
        lambda h: (h.argmax(-1), h, "text", 3),
    ],
    ids=["tensor", "tuple", "nested", "dict", "ordered", "namedtuple", "dataclass", "twice", "integers"],
)
def test_structures_of_outputs(shape):
    class Shaped(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(3, 2)

        def forward(self, x):
            return shape(self.linear(x))

    ours, eager = pair(Shaped().double())
    x = torch.randn(4, 3, dtype=torch.float64)
    mine, theirs = ours(x), eager(x)
    assert type(mine) is type(theirs)
    flat_mine, spec_mine = torch.utils._pytree.tree_flatten(vars(mine) if dataclasses.is_dataclass(mine) else mine)
    flat, spec = torch.utils._pytree.tree_flatten(vars(theirs) if dataclasses.is_dataclass(theirs) else theirs)
    assert spec_mine == spec
    loss_mine = loss = 0
    for have, want in zip(flat_mine, flat, strict=True):
        if not isinstance(want, torch.Tensor):
            assert have == want
            continue
        torch.testing.assert_close(have, want, **DOUBLE)
        assert have.requires_grad == want.requires_grad
        if want.requires_grad:
            loss_mine, loss = loss_mine + have.square().sum(), loss + want.square().sum()
    loss_mine.backward()
    loss.backward()
    assert_same_gradients(ours, eager, **DOUBLE)


def test_an_output_that_wants_no_gradient():
    class Detached(Perceptron):
        def forward(self, x):
            y = super().forward(x)
            return y, y.detach() * 2

    ours, _ = pair(Detached())
    y, free = ours(torch.randn(4, 6))
    assert y.requires_grad and not free.requires_grad


def test_a_transformers_model_and_its_output():
    from transformers import BertConfig, BertForSequenceClassification
    from transformers.modeling_outputs import SequenceClassifierOutput

    config = BertConfig(
        vocab_size=40, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, num_labels=3,
    )  # fmt: skip
    ours, eager = pair(BertForSequenceClassification(config).double())
    for length in (6, 9):
        batch = {
            "input_ids": torch.randint(0, 40, (2, length)),
            "attention_mask": (torch.arange(length) < torch.tensor([[length], [3]])).long(),
            "labels": torch.tensor([0, 2]),
        }
        outputs = [module(**batch) for module in (ours, eager)]
        assert isinstance(outputs[0], SequenceClassifierOutput)
        torch.testing.assert_close(outputs[0].logits, outputs[1].logits, **DOUBLE)
        for module, output in zip((ours, eager), outputs, strict=True):
            module.zero_grad()
            output.loss.backward()
        assert_same_gradients(ours, eager, rtol=1e-7, atol=1e-10)
    assert ours._engine.captures == 1
    assert ours.config is config


def test_gradients_of_logits_where_the_loss_was_expected():
    """A plan is made for the loss alone; a backward from other outputs is right all the same."""
    ours, eager = pair(LanguageModel().double())
    ids = torch.randint(0, 20, (2, 7))
    for take in (lambda o: o[0], lambda o: o[1].square().mean(), lambda o: o[0] + o[1].mean(), lambda o: o[0]):
        for module in (ours, eager):
            module.zero_grad()
            take(module(ids, ids)).backward()
        assert_same_gradients(ours, eager, **DOUBLE)


def test_numbers_from_finite_differences():
    module = Perceptron().double().eval()
    x = torch.randn(3, 6, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(ORTModule(module), (x,))


def test_autograd_grad_and_kept_gradients_do_not_change():
    """Gradients lie in memory that is used again: only once nobody holds them."""
    ours, eager = pair(LanguageModel().double())
    outputs = []
    for seed in range(6):
        ids = torch.randint(0, 20, (2, 7), generator=torch.Generator().manual_seed(seed))
        mine = torch.autograd.grad(ours(ids, ids)[0], list(ours.parameters()))
        theirs = torch.autograd.grad(eager(ids, ids)[0], list(eager.parameters()))
        outputs.append((mine, theirs))
    for mine, theirs in outputs:
        for have, want in zip(mine, theirs, strict=True):
            torch.testing.assert_close(have, want, **DOUBLE)


def test_random_numbers_follow_torchs_generator():
    ours = ORTModule(Perceptron(dropout=0.5))
    x = torch.randn(16, 6)

    def run(seed):
        torch.manual_seed(seed)
        return [ours(x).detach() for _ in range(2)]

    first, second, other = run(1), run(1), run(2)
    assert torch.equal(first[0], second[0]) and torch.equal(first[1], second[1])
    assert not torch.equal(first[0], first[1]) and not torch.equal(first[0], other[0])


def test_dropout_drops_and_scales():
    class Dropping(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(400, 500))
            self.dropout = nn.Dropout(0.3)

        def forward(self):
            return self.dropout(self.weight)

    ours = ORTModule(Dropping())
    y = ours()
    y.sum().backward()
    np.testing.assert_allclose(np.unique(y.detach().numpy()), [0, 1 / 0.7], rtol=1e-4)
    assert abs((y == 0).float().mean().item() - 0.3) < 0.005
    torch.testing.assert_close(ours.weight.grad, y.detach())
    ours.eval()
    assert torch.equal(ours(), torch.ones(400, 500))


def test_a_gradient_that_an_input_shares_with_parameters():
    class Biased(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 4)
            self.bias = nn.Parameter(torch.zeros(4))

        def forward(self, x, bias, other):
            return self.linear(x) + bias + other + self.bias

    ours, eager = pair(Biased().double())
    x = torch.randn(3, 4, dtype=torch.float64)
    for _ in range(2):  # each backward has memory of its own for gradients
        gradients = []
        for module in (ours, eager):
            leaves = [torch.zeros(4, dtype=torch.float64).requires_grad_() for _ in range(2)]
            module(x, *leaves).square().sum().backward()
            gradients.append([leaf.grad for leaf in leaves])
        torch.testing.assert_close(*gradients, **DOUBLE)
        assert_same_gradients(ours, eager, **DOUBLE)
