"""Real processes over Gloo for tests: each gets what torchrun would tell it, and runs one function."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from ontrain.distributed import Processes, find_processes
from ontrain.training import ORTTrainer, optim
from tests.processes import start_and_join

VOCABULARY, PARTS = 13, 16


def run(size: int, function: Callable[..., None], *args: Any) -> None:
    """Start `size` processes, let each call `function(*args)`, and wait; what one of them raises is raised here."""
    start_and_join(enter, rows(size, function, *args))


def rows(size: int, function: Callable[..., None], *args: Any) -> list[tuple[Any, ...]]:
    """What to call `enter` with in each of `size` processes."""
    port = free_port()
    return [(rank, size, port, function, args) for rank in range(size)]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def enter(rank: int, size: int, port: int, function: Callable[..., None], args: tuple[Any, ...]) -> None:
    """Call a function as one of the processes that torchrun started."""
    os.environ.update(Processes("torchrun", rank, size, rank, size, "127.0.0.1", port).environment())
    function(*args)


class Net(nn.Module):
    """Embedding, a layer, normalisation, and a head tied to the embedding; one layer is never used."""

    def __init__(self, dropout: float = 0.0, width: int = 6) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, width, padding_idx=0)
        self.mix = nn.Linear(width, width)
        self.unused = nn.Linear(2, 3)
        self.norm = nn.LayerNorm(width)
        self.drop = nn.Dropout(dropout)
        self.head = nn.Linear(width, VOCABULARY)
        self.head.weight = self.embed.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids)
        return self.head(self.norm(x + self.drop(torch.tanh(self.mix(x)))))


def token_loss(scores: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(scores.flatten(0, 1), label.flatten())


DESCRIPTION = {
    "inputs": [("ids", ["batch", "length"]), ("label", ["batch", "length"])],
    "outputs": [("loss", [], True), ("scores", ["batch", "length", VOCABULARY])],
}

_NO_DECAY = [{"params": ["mix.bias", "norm.weight", "norm.bias", "head.bias"], "lambda_coef": 0.0}]
CONFIGS: dict[str, Callable[[], Any]] = {
    "SGD": lambda: optim.SGDConfig(lr=0.2),
    "Adam": lambda: optim.AdamConfig(lr=0.02, lambda_coef=0.01, params=_NO_DECAY),
    "Lamb": lambda: optim.LambConfig(lr=0.02, lambda_coef=0.01, params=_NO_DECAY, do_bias_correction=True),
}


def net(dtype: torch.dtype = torch.float64, seed: int = 3, **arguments: Any) -> Net:
    torch.manual_seed(seed)
    return Net(**arguments).to(dtype)


def trainer(config: str, model: nn.Module | None = None, stage: int = 0, steps: int = 1, **sections: Any) -> ORTTrainer:
    """A trainer in the world that the environment speaks of, which accumulates over `steps` micro-batches."""
    asked: dict[str, Any] = {
        "distributed": {**find_processes().options(), "deepspeed_zero_optimization": {"stage": stage}, "timeout": 300},
        "device": {"id": "cpu"},
        "batch": {"gradient_accumulation_steps": steps},
    }
    for name, values in sections.items():
        asked[name] = {**asked.get(name, {}), **values}
    return ORTTrainer(net() if model is None else model, DESCRIPTION, CONFIGS[config](), token_loss, asked)


Batch = tuple[torch.Tensor, torch.Tensor]


def batches(count: int, seed: int = 11) -> list[list[Batch]]:
    """For each update 16 parts of 2 rows, with between 0 and 8 labels; in some, the last four have none at all."""
    generator = torch.Generator().manual_seed(seed)
    groups = []
    for number in range(count):
        parts = []
        for _ in range(PARTS):
            ids = torch.randint(1, VOCABULARY, (2, 4), generator=generator)
            label = torch.randint(0, VOCABULARY, (2, 4), generator=generator)
            label[torch.rand(2, 4, generator=generator) < 0.6] = -100
            parts.append((ids, label))
        if number % 3 == 0:
            for _, label in parts[-4:]:
                label.fill_(-100)
        groups.append(parts)
    return groups


def joined(parts: list[Batch]) -> Batch:
    """Some parts as one batch."""
    return torch.cat([ids for ids, _ in parts]), torch.cat([label for _, label in parts])


def own_batches(parts: list[Batch], steps: int, rank: int, size: int) -> list[Batch]:
    """The micro-batches of one process: its share of the parts, in `steps` portions."""
    share = len(parts) // size
    portion = share // steps
    return [joined(parts[start : start + portion]) for start in range(rank * share, (rank + 1) * share, portion)]


def train(trainer: ORTTrainer, data: list[list[Batch]], steps: int = 1) -> list[torch.Tensor]:
    """Make the updates of this process; its losses."""
    me = find_processes()
    return [
        trainer.train_step(*batch)[0]
        for parts in data
        for batch in own_batches(parts, steps, me.rank, me.world_size)
    ]  # fmt: skip


def weights(trainer: ORTTrainer) -> dict[str, torch.Tensor]:
    return trainer.state_dict(pytorch_format=True)


def furthest(some: dict[str, torch.Tensor], others: dict[str, torch.Tensor]) -> float:
    """The largest difference between two sets of weights of the same names."""
    assert some.keys() == others.keys()
    return max(float((some[name] - others[name]).abs().max()) for name in some)
