"""Batch size against memory: the figures of `ontrain plan` are those of the sessions that would train."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from ontrain import OptionError
from ontrain.optim import StepKind
from ontrain.session.check import plan_memory
from ontrain.training import ORTTrainer, optim


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(32, 32) for _ in range(4))
        self.head = nn.Linear(32, 3)

    def forward(self, x, labels):
        for layer in self.layers:
            x = nn.functional.dropout(nn.functional.gelu(layer(x)), 0.1)
        return nn.functional.cross_entropy(self.head(x), labels)


BATCH = (torch.randn(6, 32), torch.arange(6) % 3)


def test_rows_are_what_a_trainer_plans():
    estimate = plan_memory(Net(), BATCH, batch_sizes=[2, 16], optimizer="Adam")
    description = {"inputs": [("x", ["n", 32]), ("labels", ["n"])], "outputs": [("loss", [], True)]}
    trainer = ORTTrainer(Net(), description, optim.AdamConfig(), options={"device": {"id": "cpu"}})
    numbers = sum(p.numel() for p in Net().parameters())
    for row in estimate.rows:
        batch = (torch.randn(row.batch_size, 32), torch.zeros(row.batch_size, dtype=torch.int64))
        session, _ = trainer.prepare(*batch)
        plan = session.plan(StepKind.UPDATE, dict(zip(("x", "labels"), batch, strict=True)))
        assert row.activations == plan.executable.planned_bytes
        assert row.peak == session.state_bytes() + row.activations
        assert (row.parameters, row.moments) == (4 * numbers, 8 * numbers)
    assert [row.batch_size for row in estimate.rows] == [2, 16]


def test_a_budget_is_kept_to_at_each_size_or_its_row_says_why_not():
    plan = plan_memory(Net(), BATCH, batch_sizes=[64], budgets=["0.8", "0.01"])
    free, budgeted, refused = plan.rows
    assert (free.budget, budgeted.budget, refused.budget) == (None, "0.8", "0.01")
    assert budgeted.activations <= 0.8 * free.activations and 0 < budgeted.recomputed_flop < 0.5
    assert budgeted.peak - budgeted.activations == free.peak - free.activations
    assert "cannot be reached" in refused.problem and refused.peak == 0
    assert any("Gelu" in cluster.name for cluster in plan.clusters)
    assert plan.to_json()["rows"][1]["peak"] == budgeted.peak


def test_a_module_that_forbids_another_batch_is_captured_at_each():
    class Fixed(Net):
        def forward(self, x, labels):
            assert x.shape[0] in (4, 8)
            return super().forward(x if x.shape[0] == 4 else x * 2, labels)

    rows = plan_memory(Fixed(), (torch.randn(4, 32), torch.zeros(4, dtype=torch.int64)), batch_sizes=[4, 8]).rows
    assert rows[0].activations < rows[1].activations


def test_batch_normalisation_and_an_added_loss():
    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4 * 36, 5))
    plan = plan_memory(net, (torch.randn(3, 1, 8, 8),), batch_sizes=[1, 5], loss="SoftmaxCrossEntropy")
    assert plan.rows[0].activations < plan.rows[1].activations and not net[1].num_batches_tracked


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"batch_sizes": [0]}, "batch size 0"), ({"budgets": ["lots"]}, "memory_budget is 'lots'"),
        ({"provider": "ReferenceExecutionProvider"}, "does not plan memory"), ({"loss": "nothing"}, "'nothing'"),
        ({"args": (3.0,)}, "no batch"), ({"batch_sizes": [10**12]}, "needs .* for one of its tensors, there are"),
    ],
)  # fmt: skip
def test_wrong_arguments_are_named(arguments, said):
    with pytest.raises(OptionError, match=said):
        plan_memory(Net(), arguments.pop("args", BATCH), **arguments)
