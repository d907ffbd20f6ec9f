"""Plans at sizes that are new are those that would have been made for them."""

from __future__ import annotations

import copy
import functools
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
import torch
import transformers
from torch import nn

from ontrain.graph.sheet import read
from ontrain.session import planner, row_counts
from ontrain.session.plans import make_plan
from ontrain.session.row_counts import KnownRows
from ontrain.training import ORTTrainer, optim
from ontrain.training.ortmodule import ORTModule

pytestmark = pytest.mark.sampled(4)

Batches = Callable[[random.Random], dict[str, torch.Tensor]]


@pytest.fixture(autouse=True)
def count_rows_of_small_models(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_counts, "WORTH_COUNTING", 1)


@pytest.fixture
def bound(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """What became of each plan that was bound: "equal" to the one made for its sizes, or what differs."""
    verdicts: list[str] = []
    original = planner.Planner._bound

    def compare(self: Any, family: Any, structure: planner.Structure, signature: Any, counts: Any) -> Any:
        plan = original(self, family, structure, signature, counts)
        if plan is not None:
            journal, build = structure.journal(), structure.build
            fresh = make_plan(
                structure.model, signature, lambda model: None, outputs=structure.outputs, journal=journal,
                build=None if build is None else functools.partial(build, journal), rows=KnownRows(counts),
            )  # fmt: skip
            verdicts.append(_difference(plan.model, fresh.model))
            assert (plan.absent, plan.adjoints) == (fresh.absent, fresh.adjoints)
        return plan

    monkeypatch.setattr(planner.Planner, "_bound", compare)
    yield verdicts
    assert set(verdicts) <= {"equal"}


def _difference(bound: ir.Model, fresh: ir.Model) -> str:
    left, other = read(bound), read(fresh)
    if left.structure != other.structure:
        return "structure"
    if left.numbers != other.numbers:
        return "numbers"
    for a, b in zip(left.constants, other.constants, strict=True):
        x, y = a.numpy(), b.numpy()
        if a.dtype != b.dtype or x.shape != y.shape or x.tobytes() != y.tobytes():
            return f"a constant {x.dtype}{list(x.shape)}"
    return "equal"


def _ids(draw: random.Random, batch: int, length: int) -> torch.Tensor:
    return torch.tensor([[draw.randrange(1, 90) for _ in range(length)] for _ in range(batch)])


def _mask(draw: random.Random, batch: int, length: int) -> torch.Tensor:
    mask = torch.ones(batch, length, dtype=torch.int64)
    for row in mask[1:]:
        row[draw.randrange(3, length + 1) :] = 0
    return mask


def _bert() -> transformers.BertConfig:
    return transformers.BertConfig(
        vocab_size=99, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
        max_position_embeddings=64,
    )  # fmt: skip


def masked_words() -> tuple[nn.Module, Batches]:
    """Padding and words without a label are left out, in numbers of their own."""

    def batch(draw: random.Random) -> dict[str, torch.Tensor]:
        length = draw.randrange(9, 40)
        ids = _ids(draw, 4, length)
        labels = torch.where(torch.rand(ids.shape) < 0.2, ids, -100)
        labels[0, 0] = 5
        return {"input_ids": ids, "attention_mask": _mask(draw, 4, length), "labels": labels}

    return transformers.BertForMaskedLM(_bert()), batch


def classes() -> tuple[nn.Module, Batches]:
    """The batch varies, too: numbers are products of two sizes."""

    def batch(draw: random.Random) -> dict[str, torch.Tensor]:
        count, length = draw.randrange(3, 8), draw.randrange(9, 40)
        labels = torch.tensor([draw.randrange(2) for _ in range(count)])
        return {"input_ids": _ids(draw, count, length), "attention_mask": _mask(draw, count, length), "labels": labels}

    return transformers.BertForSequenceClassification(_bert()), batch


def causal() -> tuple[nn.Module, Batches]:
    """A causal mask, and one label less than words."""
    config = transformers.GPT2Config(
        vocab_size=99, n_embd=32, n_layer=2, n_head=2, n_positions=64, use_cache=False, bos_token_id=1, eos_token_id=1
    )

    def batch(draw: random.Random) -> dict[str, torch.Tensor]:
        ids = _ids(draw, 4, draw.randrange(9, 40))
        return {"input_ids": ids, "labels": ids}

    return transformers.GPT2LMHeadModel(config), batch


class _Perceptron(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(8, 16), nn.GELU(), nn.Dropout(0.1), nn.BatchNorm1d(16), nn.LayerNorm(16), nn.Linear(16, 3)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x).square().mean()


def perceptron() -> tuple[nn.Module, Batches]:
    return _Perceptron(), lambda draw: {"x": torch.randn(draw.randrange(3, 60), 8)}


class _Images(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(8, 8, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5),
        )  # fmt: skip

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x).square().mean()


def images() -> tuple[nn.Module, Batches]:
    """Height and width vary."""
    return _Images(), lambda draw: {"x": torch.randn(2, 3, 8 * draw.randrange(2, 8), 8 * draw.randrange(2, 8))}


BATCHES = 36
"""Enough that most sizes lie between those seen, of three sizes that vary, too."""
MODELS = [masked_words, classes, causal, images]


def _loss(outputs: Any) -> torch.Tensor:
    return outputs.loss if hasattr(outputs, "loss") else outputs


@pytest.mark.parametrize("make", MODELS, ids=lambda make: make.__name__)
def test_a_module_is_bound_to_the_plans_that_would_be_made(make: Any, bound: list[str]) -> None:
    torch.manual_seed(0)
    model, batch = make()
    wrapped, draw = ORTModule(model.train()), random.Random(1)
    for _ in range(BATCHES):
        _loss(wrapped(**batch(draw))).backward()
    assert len(bound) >= 3


def test_gradients_of_bound_plans_are_those_of_pytorch(bound: list[str]) -> None:
    torch.manual_seed(0)
    model, batch = images()
    eager, draw = copy.deepcopy(model).train().double(), random.Random(2)
    for module in [*model.modules(), *eager.modules()]:
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    wrapped = ORTModule(model.train())
    for _ in range(30):
        feeds = batch(draw)
        known = len(bound)
        for variant, inputs in ((wrapped, feeds), (eager, {k: _wide(v) for k, v in feeds.items()})):
            variant.zero_grad()
            _loss(variant(**inputs)).backward()
        if len(bound) == known:
            continue
        for mine, theirs in zip(model.parameters(), eager.parameters(), strict=True):
            if theirs.grad is not None:
                np.testing.assert_allclose(mine.grad, theirs.grad, rtol=2e-4, atol=2e-6)
    assert bound


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.double() if tensor.is_floating_point() else tensor


@pytest.mark.thorough
def test_a_trainer_is_bound_in_steps_and_in_evaluation(bound: list[str]) -> None:
    torch.manual_seed(0)
    model, batch = causal()
    names = ["input_ids", "labels"]
    description = {
        "inputs": [(name, ["batch", "length"]) for name in names],
        "outputs": [("loss", [], True), ("logits", ["batch", "length", 99])],
    }
    trainer, draw = ORTTrainer(model, description, optim.AdamConfig()), random.Random(3)
    for _ in range(18):
        trainer.train_step(**batch(draw))
    steps = len(bound)
    for _ in range(18):
        trainer.eval_step(**batch(draw))
    assert steps >= 2
    assert len(bound) - steps >= 2


def test_a_new_learning_rate_of_the_optimizer_forgets_what_was_learned(bound: list[str]) -> None:
    torch.manual_seed(0)
    model, batch = perceptron()
    description = {"inputs": [("x", ["batch", 8])], "outputs": [("loss", [], True)]}
    trainer, draw = ORTTrainer(model, description, optim.AdamConfig()), random.Random(4)
    for _ in range(20):
        trainer.train_step(**batch(draw))
    assert bound
    trainer._run.session.set_optimizer(copy.deepcopy(trainer._run.session.optimizer))
    before = len(bound)
    trainer.train_step(**batch(draw))
    assert len(bound) == before
