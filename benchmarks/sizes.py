"""Plans of a model whose batches come in many sizes: what it takes to make one, and to bind one to new sizes.

    python -m benchmarks.sizes [--layers 4] [--batches 60]

BERT (hidden 768) classifies 32 random sentences of 10 to 40 tokens, each batch padded to its longest, in an ORTModule.
The first plan is left out of the medians, and products are not measured (ONTRAIN_TUNE=0). Rows go to
benchmarks/results/sizes.jsonl.
"""

from __future__ import annotations

import math
import os
import random
import statistics
from typing import TYPE_CHECKING, Any

from benchmarks.commands import Command
from benchmarks.rows import append_row

if TYPE_CHECKING:
    import torch


def batch(draw: random.Random, size: int = 32) -> dict[str, torch.Tensor]:
    """Return sentences of random lengths, padded to the longest."""
    import torch

    lengths = [draw.randrange(10, 41) for _ in range(size)]
    lengths[0] = draw.randrange(30, 41)
    mask = torch.arange(max(lengths))[None] < torch.tensor(lengths)[:, None]
    ids = torch.tensor([[draw.randrange(1, 30000) for _ in range(max(lengths))] for _ in lengths]) * mask
    return {"input_ids": ids, "attention_mask": mask.long(), "labels": torch.tensor([n % 2 for n in lengths])}


def measure(layers: int, batches: int) -> dict[str, Any]:
    """Return how many plans were made and bound, and the median seconds of each."""
    import torch
    from transformers import BertConfig, BertForSequenceClassification

    from ontrain.training.ortmodule import ORTModule

    torch.manual_seed(0)
    model = BertForSequenceClassification(BertConfig(num_hidden_layers=layers)).train()
    wrapped, draw = ORTModule(model), random.Random(0)
    for _ in range(batches):
        wrapped(**batch(draw)).loss.backward()
        model.zero_grad()
    plans = [plan for entry in wrapped._engine.entries for plan in entry.session.plans.values()]
    seconds = [(sum(plan.seconds.values()), "specialise" in plan.seconds) for plan in plans]
    full = [took for took, in_full in seconds[1:] if in_full]
    bound = [took for took, in_full in seconds if not in_full]
    return {
        "made": 1 + len(full), "bound": len(bound),
        "made_s": statistics.median(full or [math.nan]), "bound_s": statistics.median(bound or [math.nan]),
        "nodes": len(plans[0].model.graph),
    }  # fmt: skip


def main() -> None:
    """Print the figures and append a row."""
    parser = Command(__doc__)
    parser.add_argument("--layers", type=int, default=4, help="of the model")
    parser.add_argument("--batches", type=int, default=60, help="each of other sizes")
    arguments = parser.parse_args()
    import torch

    os.environ["ONTRAIN_TUNE"] = "0"
    torch.set_num_threads(1)
    row = measure(arguments.layers, arguments.batches)
    print(f"{row['nodes']} nodes; {row['made']} plans made, {row['made_s']:.3f} s each", end="; ")
    print(f"{row['bound']} plans bound, {row['bound_s']:.3f} s each")
    append_row("sizes", {"benchmark": "sizes", "layers": arguments.layers, "batches": arguments.batches, **row})


if __name__ == "__main__":
    main()
