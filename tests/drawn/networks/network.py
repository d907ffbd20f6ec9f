"""A network of tokens through ORTModule beside eager in float64: padding and rows without label may be left out.

Five calls with three batches, in training and evaluation: losses, outputs, gradients and buffers.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from ontrain.training.ortmodule import ORTModule
from tests.drawn.draw import Draw
from tests.drawn.judge import Tolerance, compare, compare_buffers, compare_gradients, oracle
from tests.drawn.networks.parts import VOCABULARY, WIDTH, Batch, Block, Scores, block, draw_batch, loss

__all__ = ["Network", "block", "draw_network", "judge_network", "outputs_of"]

VALUE, GRADIENT, BUFFER = Tolerance(1e-9, 1e-10), Tolerance(1e-8, 1e-9), Tolerance(1e-7, 1e-9)
RESULTS = ("loss", "loss", "loss", "loss and logits", "loss and hidden states")


class Network(nn.Module):
    """An embedding, blocks, a head, perhaps with the embedding's weight, and a loss.

    Attributes:
        results: of RESULTS, what forward returns.
    """

    def __init__(self, draw: Draw, kinds: Sequence[str], loss_name: str, results: str) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH, padding_idx=draw.choice([None, 0]))
        self.blocks = nn.ModuleList(Block(draw, kind) for kind in kinds)
        self.head, self.pair = nn.Linear(WIDTH, VOCABULARY), nn.Linear(WIDTH, 2)
        self.class_weights, self.tied = torch.rand(VOCABULARY), draw.flag()
        if self.tied:
            self.head.weight = self.embedding.weight
        self.loss_name, self.loss, self.results = loss_name, loss[loss_name], results

    def forward(self, tokens: torch.Tensor, mask: torch.Tensor, labels: torch.Tensor) -> Any:
        hidden = self.embedding(tokens)
        for layer in self.blocks:
            hidden = layer(hidden, mask)
        logits = self.head(hidden)
        value = self.loss(Scores(self, hidden, logits, Batch(tokens, mask, labels)))
        if self.results == "loss and hidden states":
            return {"loss": value, "hidden": hidden}
        return (value, logits) if self.results == "loss and logits" else value

    def __str__(self) -> str:
        tied = ", tied" if self.tied else ""
        return f"{', '.join(map(str, self.blocks))}, {self.loss_name}, {self.results}{tied}"


def draw_network(draw: Draw, family: str, without: Sequence[str] = (), results: Sequence[str] = RESULTS) -> Network:
    """One to four blocks, one of them of this family.

    Args:
        without: kinds of blocks and losses that are not drawn besides.
        results: what forward may return.
    """
    others = [kind for kind in block.turns if kind not in without]
    kinds = [draw.choice(others) for _ in range(draw.integer(0, 3))]
    kinds.insert(draw.integer(0, len(kinds)), family)
    losses = [name for name in loss if name not in without]
    return Network(draw, kinds, draw.choice(losses), draw.choice(results))


def outputs_of(returned: Any) -> list[torch.Tensor]:
    """What forward returned, the loss first."""
    if isinstance(returned, dict):
        return list(returned.values())
    return list(returned) if isinstance(returned, tuple) else [returned]


def judge_network(draw: Draw, family: str, drawn: list[str]) -> None:
    """Run a network with a block of this family."""
    with draw.alone():
        eager = draw_network(draw, family)
        first, second, third = (draw_batch(draw) for _ in range(3))
        drawn += [str(eager), str([tuple(batch.tokens.shape) for batch in (first, second, third)])]
        ours = ORTModule(copy.deepcopy(eager))
        for call, batch in enumerate((first, second, third, first, second)):
            training, all_outputs = draw.flag(0.85), draw.flag()
            with oracle():
                expected = _step(eager, batch, training, all_outputs)
            actual = _step(ours, batch, training, all_outputs)
            for position, (output, ours_output) in enumerate(zip(expected, actual, strict=True)):
                compare(f"output {position} of call {call}", output, ours_output, VALUE)
            # Of a parameter from which no row that counts leads to the loss, nothing and zero say the same.
            what = f"gradient in call {call}"
            compare_gradients(_gradients(eager), _gradients(ours), GRADIENT, absent_is_zero=True, what=what)
            compare_buffers(eager, ours, BUFFER)


def _step(module: nn.Module, batch: Batch, training: bool, all_outputs: bool) -> list[torch.Tensor]:
    """Forward and backward, from the loss alone or from all outputs; what forward returned."""
    module.train(training)
    module.zero_grad()
    outputs = outputs_of(module(*batch.tensors))
    total = outputs[0]
    for output in outputs[1:] if all_outputs else ():
        total = total + (output * torch.linspace(0.5, 1, output.numel()).view(output.shape)).sum()
    total.backward()
    return [output.detach() for output in outputs]


def _gradients(module: nn.Module) -> dict[str, torch.Tensor | None]:
    return {f"parameter {i}": parameter.grad for i, parameter in enumerate(module.parameters())}
