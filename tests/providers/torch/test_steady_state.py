"""After the first step memory is there: a step asks for none but what it hands out."""

from __future__ import annotations

import functools

import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

from ontrain.optim import StepKind
from ontrain.providers.torch.lowering import attention_tiles, layer_norm
from ontrain.training import ORTTrainer, optim


class Classifier(nn.Module):
    """Products, an embedding, dropout, attention by hand and a loss; no kernel that cannot write to a given place."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.mix, self.head = nn.Embedding(20, 16), nn.Linear(16, 16), nn.Linear(16, 20)
        self.head.weight = self.embed.weight

    def forward(self, ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids)
        x = torch.softmax(x @ x.transpose(1, 2) * 0.25, -1) @ x
        x = nn.functional.dropout(nn.functional.gelu(self.mix(x)), 0.1, self.training)
        return nn.functional.cross_entropy(self.head(x).flatten(0, 1), labels.flatten())


class Encoder(nn.Module):
    """Normalisation, attention with dropout, and a loss in which some rows have no label."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.norm, self.qkv = nn.Embedding(20, 16), nn.LayerNorm(16), nn.Linear(16, 48)
        self.head = nn.Linear(16, 20)

    def forward(self, ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.embed(ids))
        q, k, v = (part.unflatten(-1, (2, 8)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        y = nn.functional.scaled_dot_product_attention(q, k, v, dropout_p=0.1 if self.training else 0)
        x = self.norm(x + y.transpose(1, 2).flatten(2))
        return nn.functional.cross_entropy(self.head(x).flatten(0, 1), labels.flatten())


def _asked(run) -> list[int]:
    """Bytes of each call of torch's allocator."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        run()
    events = profiler.profiler.kineto_results.events()
    return [e.nbytes() for e in events if e.name() == "[memory]" and e.nbytes() > 0]


def _step(model, clip, labels):
    """What makes one step of a model's plan, and how many outputs it hands out."""
    desc = {"inputs": [("ids", [4, 6]), ("labels", [4, 6])], "outputs": [("loss", [], True)]}
    options = {"device": {"id": "cpu"}, "utils": {"grad_norm_clip": clip}}
    trainer = ORTTrainer(model, desc, optim.AdamConfig(), options=options)
    batch = {"ids": torch.randint(0, 20, (4, 6)), "labels": labels}
    session, _ = trainer.prepare(*batch.values())
    executable = session.plan(StepKind.UPDATE, batch).executable
    feeds = {name: batch.get(name, 1.0) for name in executable.current.inputs}
    executable.run(feeds, rng=(0, 0))
    return functools.partial(executable.run, feeds, rng=(0, 1)), executable


@pytest.mark.parametrize("clip", [False, True], ids=["plain", "clipped"])
def test_a_step_asks_the_allocator_for_its_outputs_only(clip):
    run, executable = _step(Classifier(), clip, torch.randint(0, 20, (4, 6)))
    asked = _asked(run)
    assert len(asked) <= len(executable.current.outputs) <= 6
    assert max(asked) <= 8, "scalars"


@pytest.mark.usefixtures("rows_counted")
def test_large_normalisations_and_attentions_and_chosen_rows_ask_for_nothing_either(monkeypatch):
    monkeypatch.setenv("ONTRAIN_TUNE", "0")
    monkeypatch.setattr(layer_norm, "_LARGE", 0)
    monkeypatch.setattr(attention_tiles, "TILED", 0)
    labels = torch.where(torch.arange(24).reshape(4, 6) % 4 == 0, 3, -100)
    run, executable = _step(Encoder(), True, labels)
    called = {instruction.fn for instruction in executable.current._program}
    assert {layer_norm._normalise, layer_norm._normalise_backward, attention_tiles._attend} <= called
    outputs = sorted(buf.meta.nbytes for buf in executable.current.outputs.values())
    asked = sorted(_asked(run))
    assert asked[: len(outputs)] == outputs
    assert len(asked) <= len(outputs) + 2, "the rows that have a label are sorted and moved in memory of ATen's own"


def test_the_profiler_sees_calls_of_the_allocator():
    assert _asked(lambda: torch.empty(1000)) == [4000]
