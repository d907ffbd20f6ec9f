"""What a plan computes again, and a trainer with options of its graph."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch

from ontrain.training import ORTTrainer, optim


def again(plan: Any) -> Counter[str]:
    """Operators that run a second time."""
    nodes = (node for node in plan.model.graph if any((v.name or "").endswith("_again") for v in node.outputs))
    return Counter(node.op_type for node in nodes if node.op_type not in ("Reshape", "Transpose", "Split"))


def tiny_trainer(**options: Any) -> Any:
    model = torch.nn.Linear(4, 3)
    description = {"inputs": [("x", [5, 4]), ("label", [5])], "outputs": [("loss", [], True)]}
    trainer = ORTTrainer(
        model, description, optim.AdamConfig(), torch.nn.functional.cross_entropy,
        {"graph_transformer": options, "device": {"id": "cpu"}},
    )  # fmt: skip
    return trainer.train_step(torch.randn(5, 4), torch.randint(3, (5,)))
