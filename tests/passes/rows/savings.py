"""Steps of small encoders, and how many rows are really computed, read off the graphs that plans run."""

from __future__ import annotations

import torch

from ontrain.training import ORTTrainer, optim
from tests.passes.rows.encoders import BATCH, LENGTH, VOCABULARY, initialised

ROWS = BATCH * LENGTH


NAMES = ("EliminateUnlabelledRows", "EliminateUnreadRows", "EliminatePadding")


def batch(labelled, lengths):
    torch.manual_seed(1)
    ids = torch.randint(0, VOCABULARY, (BATCH, LENGTH))
    mask = (torch.arange(LENGTH) < torch.tensor(lengths)[:, None]).long()
    labels = torch.full((ROWS,), -100)
    labels[labelled] = 1
    return {"ids": ids, "mask": mask, "labels": labels.reshape(BATCH, LENGTH)}


def trainer_of(module, feeds, *, outputs=(), **options):
    axes = ["batch", "length"]
    description = {
        "inputs": [(name, axes[: tensor.dim()]) for name, tensor in feeds.items()],
        "outputs": [("loss", [], True), *outputs],
    }
    return ORTTrainer(module, description, optim.SGDConfig(lr=1.0), None, {"device": {"id": "cpu"}, **options})


def plan_of(module, feeds, **options):
    """The plan of one step, and the rows of each forward product with a weight, by the weight's name."""
    trainer = trainer_of(initialised(module), feeds, **options)
    trainer.train_step(**feeds)
    (plan,) = trainer._run.session.plans.values()
    rows = {}
    for node in plan.model.graph:
        if node.op_type == "Gemm" and node.inputs[1].name.endswith("weight") and node.inputs[1].is_graph_input():
            rows.setdefault(node.inputs[1].name, node.outputs[0].shape[0])
    return plan, {name.removesuffix(".weight").removeprefix("encoder."): count for name, count in rows.items()}


def notes(plan):
    return {report.name: report.notes for report in plan.passes if report.notes}


def layer(number, **rows):
    return {f"layers.{number}.{name}": count for name, count in rows.items()}
