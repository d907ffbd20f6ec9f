"""After the first step memory is there: a step asks for none but what it hands out."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

from ontrain.optim import StepKind
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


def _asked(run) -> list[int]:
    """Bytes of each call of torch's allocator."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        run()
    events = profiler.profiler.kineto_results.events()
    return [e.nbytes() for e in events if e.name() == "[memory]" and e.nbytes() > 0]


@pytest.mark.parametrize("clip", [False, True], ids=["plain", "clipped"])
def test_a_step_asks_the_allocator_for_its_outputs_only(clip):
    desc = {"inputs": [("ids", [4, 6]), ("labels", [4, 6])], "outputs": [("loss", [], True)]}
    options = {"device": {"id": "cpu"}, "utils": {"grad_norm_clip": clip}}
    trainer = ORTTrainer(Classifier(), desc, optim.AdamConfig(), options=options)
    batch = {"ids": torch.randint(0, 20, (4, 6)), "labels": torch.randint(0, 20, (4, 6))}
    session, _ = trainer.prepare(*batch.values())
    executable = session.plan(StepKind.UPDATE, batch).executable
    feeds = {name: batch.get(name, 1.0) for name in executable._inputs or executable._input_bufs}
    executable.run(feeds, rng=(0, 0))
    asked = _asked(lambda: executable.run(feeds, rng=(0, 1)))
    assert len(asked) <= len(executable._output_bufs) <= 6
    assert max(asked) <= 8, "scalars"


def test_the_profiler_sees_calls_of_the_allocator():
    assert _asked(lambda: torch.empty(1000)) == [4000]
