"""torch.utils.checkpoint inside the module: its function is part of the graph, with the gradients of eager PyTorch."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn.utils import spectral_norm
from torch.utils.checkpoint import checkpoint, checkpoint_sequential
from transformers import BertConfig, BertForMaskedLM, GPT2Config, GPT2LMHeadModel

from ontrain.training.ortmodule import ORTModule
from tests.training.ortmodule.networks import assert_same_gradients, pair

DOUBLE = dict(rtol=1e-9, atol=1e-11)


class Checkpointed(nn.Module):
    """A checkpoint with several arguments and results, one in a checkpoint, and a sequence of them."""

    def __init__(self, reentrant: bool, dropout: float = 0.0) -> None:
        super().__init__()
        self.reentrant = reentrant
        self.first, self.second, self.head = nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 3)
        self.dropout = nn.Dropout(dropout)
        self.chain = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh())

    def inner(self, x):
        return torch.tanh(self.second(x))

    def block(self, x, scale):
        hidden = self.dropout(checkpoint(self.inner, x, use_reentrant=self.reentrant))
        return hidden * scale, hidden.mean(-1, keepdim=True)

    def forward(self, x):
        hidden, mean = checkpoint(self.block, self.first(x), torch.full((8,), 2.0, dtype=x.dtype),
                                  use_reentrant=self.reentrant)  # fmt: skip
        hidden = checkpoint_sequential(self.chain, 2, hidden, use_reentrant=self.reentrant)
        return self.head(hidden) + mean


@pytest.mark.parametrize("reentrant", [False, True])
def test_gradients_are_eagers(reentrant):
    ours, eager = pair(Checkpointed(reentrant).double())
    x = torch.randn(5, 6, dtype=torch.float64)
    inputs = [x.clone().requires_grad_() for _ in range(2)]
    for variant, tensor in zip((ours, eager), inputs, strict=True):
        variant(tensor).square().sum().backward()
    torch.testing.assert_close(inputs[0].grad, inputs[1].grad, **DOUBLE)
    assert_same_gradients(ours, eager, **DOUBLE)


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_checkpoint_around_the_first_call_gives_eagers_gradients(reentrant):
    ours, eager = pair(nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 3)).double())
    inputs = [torch.ones(5, 6).double().requires_grad_() for _ in range(2)]
    for module, x in zip((ours, eager), inputs, strict=True):
        for _ in range(2):
            checkpoint(module, x, use_reentrant=reentrant).square().sum().backward()
    torch.testing.assert_close(inputs[0].grad, inputs[1].grad, **DOUBLE)
    assert_same_gradients(ours, eager, **DOUBLE)


class Normed(nn.Module):
    """A layer whose weight is divided by a norm that is iterated in buffers, and running statistics."""

    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.reentrant, self.head = reentrant, nn.Linear(5, 3)
        self.block = nn.Sequential(spectral_norm(nn.Linear(6, 5)), nn.BatchNorm1d(5), nn.Tanh())

    def forward(self, x, checkpointed=True):
        return self.head(checkpoint(self.block, x, use_reentrant=self.reentrant) if checkpointed else self.block(x))


@pytest.mark.parametrize("reentrant", [False, True])
def test_buffers_and_gradients_through_them_are_those_without_a_checkpoint(reentrant):
    ours, eager = pair(Normed(reentrant).double())
    for _ in range(3):
        x = torch.randn(4, 6, dtype=torch.float64)
        for module, arguments in ((ours, ()), (eager, (False,))):
            module(x.clone().requires_grad_(), *arguments).square().sum().backward()
        assert_same_gradients(ours, eager, **DOUBLE)
        torch.testing.assert_close(dict(ours.named_buffers()), dict(eager.named_buffers()), **DOUBLE)


@pytest.mark.parametrize("reentrant", [False, True])
def test_dropout_has_one_mask_going_forward_and_backward(reentrant):
    ours = ORTModule(Checkpointed(reentrant, dropout=0.4).double())
    x, direction = torch.randn(2, 5, 6, dtype=torch.float64)

    def loss(at):
        torch.manual_seed(11)
        return ours(at).square().sum()

    at = x.clone().requires_grad_()
    loss(at).backward()
    with torch.no_grad():
        assert loss(x) == loss(x) and loss(x) != ours(x).square().sum(), "the case does not draw, or not repeatably"
    step = 1e-6
    along = [loss((x + sign * step * direction).requires_grad_()).detach() for sign in (1, -1)]
    torch.testing.assert_close((along[0] - along[1]) / (2 * step), (at.grad * direction).sum(), rtol=1e-6, atol=1e-6)


def test_a_running_statistic_inside_is_updated_once():
    class Normalised(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm1d(6)

        def forward(self, x):
            return checkpoint(self.norm, x, use_reentrant=False)

    ours, plain = ORTModule(Normalised().double()), nn.BatchNorm1d(6).double()
    x = torch.randn(5, 6, dtype=torch.float64)
    for variant in (ours, plain):
        variant(x).square().sum().backward()
    assert int(ours.norm.num_batches_tracked) == 1
    torch.testing.assert_close(ours.norm.running_mean, plain.running_mean, **DOUBLE)


SMALL = {
    "GPT-2": lambda: GPT2LMHeadModel(
        GPT2Config(vocab_size=30, n_positions=8, n_embd=16, n_layer=2, n_head=2, resid_pdrop=0, embd_pdrop=0,
                   attn_pdrop=0)),
    "BERT": lambda: BertForMaskedLM(
        BertConfig(vocab_size=30, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32,
                   max_position_embeddings=8, hidden_dropout_prob=0, attention_probs_dropout_prob=0)),
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "reentrant"),
    [("GPT-2", False), ("BERT", True), *(pytest.param(*case, marks=pytest.mark.thorough) for case in
                                        [("GPT-2", True), ("BERT", False)])],
)  # fmt: skip
def test_hugging_faces_gradient_checkpointing(name, reentrant):
    model = SMALL[name]().double().train()
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": reentrant})
    assert model.is_gradient_checkpointing
    eager, ours = copy.deepcopy(model), ORTModule(model)
    ids = torch.randint(1, 30, (3, 7))
    for variant in (ours, eager):
        variant(input_ids=ids, labels=ids).loss.backward()
    assert_same_gradients(ours, eager, **DOUBLE)
