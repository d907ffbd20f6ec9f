"""A forward that asks whether a size is one: a trace takes sizes that vary to be two at least, and asks nobody."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from ontrain.errors import InputError
from ontrain.training import ORTTrainer, optim
from ontrain.training.ortmodule import ORTModule


class Asking(nn.Module):
    def __init__(self, asks: str) -> None:
        super().__init__()
        self.asks, self.layer = asks, nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h, size = self.layer(x), x.shape[0]
        if self.asks == "nothing":
            return h
        if self.asks == "equals":
            return h * 2 if size == 1 else h
        if self.asks == "exceeds":
            return h - h.mean(0) if len(x) > 1 else h
        if self.asks == "product":
            return h * 2 if 3 * size < 6 else h
        if self.asks == "squeeze":
            return h.squeeze().cumsum(0).view(size, 3)
        if self.asks == "squeeze of a dimension":
            return h.squeeze_(0).cumsum(0).view(size, 3)
        assert size >= 1
        return h


def trainer_of(model: nn.Module, size: int | str = "batch") -> ORTTrainer:
    description = {"inputs": [("x", [size, 4]), ("y", [size])], "outputs": [("loss", [], True), ("out", [size, 3])]}
    options = {"device": {"id": "cpu"}}
    return ORTTrainer(model, description, optim.SGDConfig(lr=0.0), nn.functional.cross_entropy, options)


def batch(size: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(size)
    return torch.randn(size, 4, generator=generator), torch.randint(3, (size,), generator=generator)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("asks", ["equals", "exceeds", "product", "squeeze", "squeeze of a dimension"])
@pytest.mark.parametrize("sizes", [[1], [4, 1]], ids=["at first", "later"])
def test_a_trainer_refuses_a_size_for_which_forward_would_branch_otherwise(asks: str, sizes: list[int]) -> None:
    trainer = trainer_of(Asking(asks))
    for size in sizes[:-1]:
        trainer.train_step(*batch(size))
    with pytest.raises(InputError, match=r"the graph holds for .*x.shape\[0\].* only"):
        trainer.train_step(*batch(sizes[-1]))
    trainer.train_step(*batch(3))


@pytest.mark.parametrize("asks", ["nothing", "checks"])
def test_one_row_trains_where_the_answer_is_the_same(asks: str) -> None:
    model = Asking(asks)
    eager = copy.deepcopy(model)
    trainer = trainer_of(model)
    for size in (4, 1, 3):
        x, label = batch(size)
        loss, out = trainer.train_step(x, label)
        torch.testing.assert_close(out, eager(x).detach())
        torch.testing.assert_close(loss, nn.functional.cross_entropy(eager(x), label).detach())


@pytest.mark.parametrize("asks", ["equals", "exceeds", "product"])
def test_a_size_written_in_the_description_is_the_branch(asks: str) -> None:
    model = Asking(asks)
    x, label = batch(1)
    _, out = trainer_of(model, 1).train_step(x, label)
    torch.testing.assert_close(out, model(x).detach())


@pytest.mark.parametrize("asks", ["equals", "exceeds", "product"])
def test_a_module_captures_both_branches_once(asks: str) -> None:
    model = Asking(asks)
    ours = ORTModule(copy.deepcopy(model))
    for size in (4, 1, 3, 1, 5):
        x, _ = batch(size)
        torch.testing.assert_close(ours(x), model(x))
    assert ours._engine.captures == 2


class Shifted(nn.Module):
    """Puts each row in the place of the next, as decoders do with their labels: the size less one is two at least."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        shifted = x.new_zeros(x.shape)
        shifted[1:] = x[:-1].clone()
        return self.layer(shifted)


class Dropped(Shifted):
    """Drops the dimension of what is left of a batch of two."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) + self.layer(x)[1:].squeeze().cumsum(0).mean()


class Deciding(Shifted):
    """Branches on the size that torch asks about, too."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * super().forward(x) if x.shape[0] > 2 else super().forward(x)


def test_a_size_that_follows_may_be_one_or_none() -> None:
    model = Shifted()
    trainer = trainer_of(copy.deepcopy(model))
    for size in (4, 2, 1, 3):
        x, label = batch(size)
        torch.testing.assert_close(trainer.train_step(x, label)[1], model(x).detach())


@pytest.mark.parametrize("kind", [Dropped, Deciding])
def test_a_size_that_follows_may_not_be_one_where_that_is_another_computation(kind: type[Shifted]) -> None:
    model = kind()
    trainer = trainer_of(copy.deepcopy(model))
    for size in (4, 3):
        x, label = batch(size)
        torch.testing.assert_close(trainer.train_step(x, label)[1], model(x).detach())
    with pytest.raises(InputError, match=r"the graph holds for .*x.shape\[0\].* only"):
        trainer.train_step(*batch(2))


@pytest.mark.parametrize("kind", [Shifted, Dropped, Deciding])
def test_a_module_computes_what_eager_does_where_a_size_that_follows_is_one(kind: type[Shifted]) -> None:
    model = kind()
    ours = ORTModule(copy.deepcopy(model))
    for size in (4, 2, 3):
        torch.testing.assert_close(ours(batch(size)[0]), model(batch(size)[0]))


def test_t5_trains_on_short_sequences() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.T5Config(
        vocab_size=50, d_model=16, d_ff=32, d_kv=8, num_layers=1, num_heads=2, use_cache=False,
        decoder_start_token_id=0, dropout_rate=0.0,
    )  # fmt: skip
    model = transformers.T5ForConditionalGeneration(config).train()
    sequences = ["batch", "length"]
    description = {"inputs": [("input_ids", sequences), ("labels", sequences)], "outputs": [("loss", [], True)]}
    options = {"device": {"id": "cpu"}}
    trainer = ORTTrainer(copy.deepcopy(model), description, optim.SGDConfig(lr=0.0), None, options)
    for rows, length in ((2, 5), (3, 2), (2, 1), (1, 2)):
        ids, labels = torch.randint(1, 50, (2, rows, length))
        want = model(input_ids=ids, labels=labels).loss.detach()
        torch.testing.assert_close(trainer.train_step(ids, labels), want)


class NextToken(nn.Module):
    """Predicts each token from the one before it."""

    def __init__(self, asks: bool = False) -> None:
        super().__init__()
        self.asks, self.embedding, self.head = asks, nn.Embedding(11, 8), nn.Linear(8, 11)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        scores = self.head(self.embedding(x))[:, :-1]
        if self.asks and scores.shape[1] == 1:
            scores = scores * 2
        return nn.functional.cross_entropy(scores.reshape(-1, 11), x[:, 1:].reshape(-1)), scores


def of_tokens(model: nn.Module) -> ORTTrainer:
    description = {
        "inputs": [("x", ["batch", "length"])],
        "outputs": [("loss", [], True), ("scores", ["batch", "rest", 11])],
    }
    return ORTTrainer(model, description, optim.SGDConfig(lr=0.0), options={"device": {"id": "cpu"}})


@pytest.mark.sampled(2)
@pytest.mark.parametrize("lengths", [(2, 3, 5, 2), (3, 2, 6), (5, 2, 3)], ids=str)
@pytest.mark.parametrize("rows", [1, 4])
def test_two_tokens_of_which_one_is_left_train_beside_longer_batches(lengths: tuple[int, ...], rows: int) -> None:
    model = NextToken()
    eager, trainer = copy.deepcopy(model), of_tokens(model)
    for length in lengths:
        x = torch.randint(11, (rows, length), generator=torch.Generator().manual_seed(length))
        loss, scores = trainer.train_step(x)
        expected, expected_scores = eager(x)
        torch.testing.assert_close(loss, expected.detach())
        torch.testing.assert_close(scores, expected_scores.detach())


@pytest.mark.parametrize("lengths", [(5, 2), (2, 5)], ids=str)
def test_a_forward_that_asks_for_the_one_that_is_left_is_refused_elsewhere(lengths: tuple[int, int]) -> None:
    model = NextToken(asks=True)
    eager, trainer = copy.deepcopy(model), of_tokens(model)
    refused = 0
    for length in lengths:
        x = torch.randint(11, (4, length), generator=torch.Generator().manual_seed(length))
        try:
            loss, _ = trainer.train_step(x)
        except InputError:
            refused += 1
        else:
            torch.testing.assert_close(loss, eager(x)[0].detach())
    assert refused == 1
