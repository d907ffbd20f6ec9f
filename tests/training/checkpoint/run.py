"""A training run that can be killed at any moment and started again with the same command.

    python -m tests.training.checkpoint.run FOLDER MICRO_STEPS

A small transformer with dropout in float16 with loss scaling, two micro-batches an update, a learning-rate schedule, a
shuffled loader whose last batch is short, and inputs hidden at random by the global generator. Every third micro-step
is followed by a checkpoint, so that every other one is written in the midst of an update. Writes

    losses      a line for each micro-step: its number, the loss and the loss scale to the last bit
    final       a checkpoint, after the last micro-step

    python -m tests.training.checkpoint.run

reads such lines, FOLDER MICRO_STEPS, starts a process for each, and answers with its number and, in the end, its
status. These processes need not import everything anew.
"""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path

import numpy as np
import torch
from torch import nn

from ontrain.checkpoint import has_checkpoint
from ontrain.training import ORTTrainer, amp, optim
from ontrain.training.data import ResumableDataLoader, random_state, restore_random_state

WORDS, LENGTH, WIDTH, SAMPLES, BATCH, EVERY = 40, 10, 32, 45, 8, 3


class Texts(torch.utils.data.Dataset):
    """Counts from random numbers on; a word of each is hidden, another one in each epoch."""

    def __init__(self) -> None:
        start = torch.randint(WORDS, (SAMPLES, 1), generator=torch.Generator().manual_seed(3))
        self.texts = (start + torch.arange(LENGTH + 1)) % WORDS

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        text = self.texts[index]
        hidden = torch.randint(LENGTH, ())
        return torch.where(torch.arange(LENGTH) == hidden, 0, text[:-1]), text[1:]


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down, self.drop = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH), nn.Dropout(0.2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (t.unflatten(-1, (4, WIDTH // 4)).transpose(1, 2) for t in self.qkv(self.norm(x)).chunk(3, -1))
        dropout = 0.2 if self.training else 0.0
        seen = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=dropout)
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        return x + self.drop(self.down(nn.functional.gelu(self.up(x))))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.blocks, self.head = (
            nn.Embedding(WORDS, WIDTH),
            nn.ModuleList([Block()]),
            nn.Linear(WIDTH, WORDS),
        )

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.words(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def loss_fn(logits: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(logits.flatten(0, 1), label.flatten())


def make_trainer(steps: int) -> tuple[ORTTrainer, amp.DynamicLossScaler]:
    # It overflows at first, and grows every third update: no two updates in a row have the same state.
    scaler = amp.DynamicLossScaler(loss_scale=2.0**24, up_scale_window=3)
    description = {
        "inputs": [("ids", ["batch", LENGTH]), ("label", ["batch", LENGTH])],
        "outputs": [("loss", [], True), ("logits", ["batch", LENGTH, WORDS])],
    }
    options = {
        "device": {"id": "cpu"},
        "batch": {"gradient_accumulation_steps": 2},
        "mixed_precision": {"enabled": True, "loss_scaler": scaler},
        "lr_scheduler": optim.lr_scheduler.CosineWarmupLRScheduler(total_steps=steps, warmup=0.1),
        "utils": {"seed": 11},
    }
    return ORTTrainer(Model(), description, optim.AdamConfig(lr=0.01), loss_fn, options), scaler


def main(folder: Path, steps: int) -> None:
    torch.manual_seed(5)
    np.random.seed(5)
    random.seed(5)
    trainer, scaler = make_trainer(steps)
    loader = ResumableDataLoader(Texts(), BATCH, seed=7)
    checkpoint, step = folder / "ck", 0
    if has_checkpoint(checkpoint):
        user = trainer.load_checkpoint(checkpoint)
        step = user["step"]
        loader.load_state_dict(user["data"])
        restore_random_state(user["random"])

    def save(place: Path) -> None:
        user = {"step": step, "data": loader.state_dict(), "random": random_state()}
        trainer.save_checkpoint(place, user, keep=2)

    with (folder / "losses").open("a") as losses:
        while step < steps:
            for ids, label in loader:
                loss = trainer.train_step(ids, label, fetches=["loss"])
                step += 1
                losses.write(f"{step} {float(loss).hex()} {scaler.loss_scale.hex()}\n")
                losses.flush()
                if step % EVERY == 0:
                    save(checkpoint)
                if step == steps:
                    break
    save(folder / "final")


def serve() -> None:
    for line in sys.stdin:
        folder, steps = line.rsplit(maxsplit=1)
        child = os.fork()
        if child == 0:
            main(Path(folder), int(steps))
            os._exit(0)
        print(child, flush=True)
        print(os.waitpid(child, 0)[1], flush=True)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]), int(sys.argv[2]))
    else:
        serve()
