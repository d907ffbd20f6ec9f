"""What networks are put together from: batches of tokens, blocks and losses, each of which registers itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from tests.drawn.draw import Draw
from tests.drawn.families import Families

__all__ = ["IGNORED", "VOCABULARY", "WIDTH", "Batch", "Block", "Scores", "block", "draw_batch", "loss", "uses"]

WIDTH, VOCABULARY, IGNORED = 8, 11, -100
LONGEST = 16

block = Families()
"""Kinds of blocks: a function of a Block, hidden states (B, S, WIDTH) and a mask (B, S)."""
loss = Families()
"""Losses: a function of Scores."""

_LAYERS: dict[str, Callable[[], nn.Module]] = {
    "linear": lambda: nn.Linear(WIDTH, WIDTH),
    "norm": lambda: nn.LayerNorm(WIDTH),
    "triple": lambda: nn.Linear(WIDTH, 3 * WIDTH),
    "convolution": lambda: nn.Conv1d(WIDTH, WIDTH, 3, padding=1),
    "batch_norm": lambda: nn.BatchNorm1d(WIDTH),
    "recurrence": lambda: nn.GRU(WIDTH, WIDTH, batch_first=True),
    "positions": lambda: nn.Embedding(LONGEST, WIDTH),
}
_USED: dict[str, tuple[str, ...]] = {}


def uses(*layers: str) -> Callable[[Callable], Callable]:
    """Say which layers a kind of block has, besides its scale."""

    def note(function: Callable) -> Callable:
        _USED[function.__name__] = layers
        return function

    return note


@dataclass(frozen=True)
class Batch:
    """Tokens with mask and labels, each (B, S) in int64; labels that do not count are IGNORED."""

    tokens: torch.Tensor
    mask: torch.Tensor
    labels: torch.Tensor

    @property
    def tensors(self) -> tuple[torch.Tensor, ...]:
        """In the order in which a network takes them."""
        return self.tokens, self.mask, self.labels


@dataclass(frozen=True)
class Scores:
    """What a loss is computed from.

    Attributes:
        network: for its head, its small head `pair`, and its weights of classes.
        hidden: (B, S, WIDTH).
        logits: (B, S, VOCABULARY).
        batch: with tokens, mask and labels.
    """

    network: nn.Module
    hidden: torch.Tensor
    logits: torch.Tensor
    batch: Batch

    @property
    def rows(self) -> torch.Tensor:
        """Logits as (B * S, VOCABULARY)."""
        return self.logits.view(-1, VOCABULARY)

    @property
    def row_labels(self) -> torch.Tensor:
        """Labels as (B * S,)."""
        return self.batch.labels.view(-1)

    @property
    def labelled(self) -> torch.Tensor:
        """Whether a label counts."""
        return self.batch.labels != IGNORED


class Block(nn.Module):
    """A drawn block.

    Attributes:
        variant: 0, 1 or 2; what it means is the kind's own.
        projects: whether a projection follows an attention.
        masks: whether padding is masked out before rows are mixed.
        residual: whether the result is added to what came in.
    """

    def __init__(self, draw: Draw, kind: str) -> None:
        super().__init__()
        self.kind, self.function = kind, block[kind]
        self.variant, self.projects = draw.choice([0, 1, 2]), draw.flag()
        self.masks, self.residual = draw.flag(), draw.flag()
        self.scale = nn.Parameter(torch.rand(WIDTH) + 0.5)
        for layer in _USED.get(kind, ()):
            setattr(self, layer, _LAYERS[layer]())

    def forward(self, hidden: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        outputs = self.function(self, hidden, mask)
        return hidden + outputs if self.residual else outputs

    def masked(self, hidden: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Hidden states, padding at 0 if this block masks."""
        return hidden * mask.to(hidden.dtype).unsqueeze(-1) if self.masks else hidden

    def __str__(self) -> str:
        settings = ("projects", "masks", "residual")
        return f"{self.kind}({', '.join([str(self.variant), *(s for s in settings if getattr(self, s))])})"


def draw_batch(draw: Draw) -> Batch:
    """One to four sequences of up to six tokens, with padding on a side or holes, and labels of some or all."""
    count, length = draw.integer(1, 4), draw.integer(2, 6)
    mask = _mask(draw, count, length)
    tokens = draw.labels(VOCABULARY, count, length, low=1) * mask
    labels, counted = tokens.clone(), draw.choice(["all", "real", "some", "two"])
    if counted == "real":
        labels[mask == 0] = IGNORED
    elif counted == "some":
        labels[draw.uniform(count, length) > 0.3] = IGNORED
    elif counted == "two":
        labels[:] = IGNORED
    labels[0, -1], labels[-1, 1] = 1, 3  # no mean is taken over nothing
    return Batch(tokens, mask, labels)


def _mask(draw: Draw, count: int, length: int) -> torch.Tensor:
    """1 for tokens and 0 for padding; each row has a token."""
    mask = torch.ones(count, length, dtype=torch.long)
    padding = draw.choice(["right", "right", "left", "none", "holes"])
    for row in mask:
        tokens = draw.integer(1, length)
        if padding == "right":
            row[tokens:] = 0
        elif padding == "left":
            row[: length - tokens] = 0
        elif padding == "holes":
            row[:] = draw.labels(2, length)
            row[tokens - 1] = 1
    return mask
