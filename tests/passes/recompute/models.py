"""Small models with dropout, captured once for all tests, and sessions that train them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import onnx_ir as ir
import torch
from torch import nn

from ontrain.capture import Captured, capture
from ontrain.optim import OptimizerSpec, StepKind
from ontrain.passes import Journal
from ontrain.passes.recompute import Recomputation, Schedule
from ontrain.providers import get_provider
from ontrain.providers.torch import TorchExecutionProvider
from ontrain.session import Plan, PlanOptions, TrainingSession, TrainingTask
from ontrain.session.recompute import Recomputing, fit

LOSS = "output_0"
NAMES = ("bert", "gpt2", "convolutions")
memory_of = TorchExecutionProvider().memory_of


def schedule(graph: ir.Graph) -> Schedule:
    """A graph's schedule in the memory that the torch provider gives it."""
    return Schedule(graph, memory_of(graph))


@dataclass(frozen=True)
class Sample:
    """A captured model in training mode, and a batch of it."""

    captured: Captured
    batch: dict[str, torch.Tensor]


class _Loss(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids, labels):
        return self.model(input_ids=ids, labels=labels).loss


@cache
def sample(name: str) -> Sample:
    """bert and gpt2: Hugging Face's, three layers with dropout; convolutions: with batch normalisation."""
    torch.manual_seed(3)
    if name == "convolutions":
        return _captured(_Images(), {"x": torch.randn(8, 3, 12, 12), "labels": torch.randint(4, (8,))})
    import transformers

    size = {"vocab_size": 60}
    if name == "bert":
        shape = {"hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 128, "num_hidden_layers": 3}
        model = transformers.BertForMaskedLM(transformers.BertConfig(**size, **shape, max_position_embeddings=40))
    else:
        shape = {"n_embd": 32, "n_head": 4, "n_layer": 3, "n_positions": 40, "bos_token_id": 0, "eos_token_id": 0}
        model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**size, **shape, use_cache=False))
    ids = torch.randint(60, (4, 33))
    return _captured(_Loss(model), {"ids": ids, "labels": torch.where(torch.rand(ids.shape) < 0.5, ids, -100)})


class _Images(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Conv2d(i, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU()) for i in (3, 8, 8)
        )
        self.head = nn.Linear(8, 4)

    def forward(self, x, labels):
        for block in self.blocks:
            x = block(x)
        return nn.functional.cross_entropy(self.head(nn.functional.dropout(x.mean((2, 3)), 0.2)), labels)


def _captured(module: nn.Module, batch: dict[str, torch.Tensor]) -> Sample:
    captured = capture(module.train(), (), batch, input_names=list(batch))
    return Sample(captured, batch)


def session(
    name: str, request: Recomputation | None = None, provider: str = "", accumulation_steps: int = 1
) -> TrainingSession:
    captured = sample(name).captured
    tensors = {**captured.parameters, **captured.buffers}
    used = {v.name for v in captured.model.graph.inputs}
    initial = {name: tensor.detach().clone() for name, tensor in tensors.items()}
    task = TrainingTask(
        captured.model, loss=LOSS, optimizer=OptimizerSpec("AdamW"),
        trainable=[n for n in captured.parameters if n in used], max_norm=1.0, accumulation_steps=accumulation_steps,
        seed=5,
    )  # fmt: skip
    return TrainingSession(
        task, initial, get_provider(provider or "TorchExecutionProvider"), planning=PlanOptions(recomputation=request)
    )


@cache
def planned(name: str) -> tuple[TrainingSession, Plan[Any]]:
    """A session, and its plan of a step that recomputes nothing."""
    training = session(name)
    return training, training.plan(StepKind.UPDATE, sample(name).batch)


@cache
def plan(name: str, request: Recomputation | None = None) -> Plan[Any]:
    """A step's plan as a session makes it, without going all the way again."""
    training, baseline = planned(name)
    if request is None:
        return baseline
    graph, executable, recomputed = fit(
        baseline.model, baseline.executable, Recomputing(request, memory_of), training._compile, Journal("test")
    )
    return Plan(graph, executable, recomputed=recomputed)


@cache
def trained(
    name: str, request: Recomputation | None = None, steps: int = 2, accumulation_steps: int = 1
) -> dict[str, torch.Tensor]:
    """Everything that a few steps leave behind, and their losses."""
    training = session(name, request, accumulation_steps=accumulation_steps)
    losses = [training.step(sample(name).batch, 0.01)[LOSS] for _ in range(steps)]
    return {"losses": torch.stack(losses), **{n: torch.as_tensor(training.state[n]).clone() for n in training.state}}
