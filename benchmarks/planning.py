"""Seconds to capture and to plan a training step, by number of layers: they must grow linearly.

    python -m benchmarks.planning [--layers 2 4 8 16] [--repeats 3]

BERT with narrow layers (the width changes nothing here), each size in a process of its own, the fastest of the
repeats. `export` is torch.export's own time, `translate` the way from its program to ONNX; the other columns are the
phases of making a plan. Below the table a line is fitted, seconds = fixed + per layer · layers, with the distance of
the worst point from it. Rows go to benchmarks/results/planning.jsonl.
"""

from __future__ import annotations

import argparse

import numpy as np

from benchmarks.commands import Command
from benchmarks.fresh import in_fresh_process, report
from benchmarks.rows import append_row

PHASES = ("export", "translate", "specialise", "forward passes", "differentiate", "step passes", "compile")


def measure_here(layers: int) -> dict[str, float]:
    """Capture and plan once; return the seconds of each phase and the number of instructions."""
    import torch
    from transformers import BertConfig, BertForMaskedLM

    from ontrain.optim import StepKind
    from ontrain.training import ORTTrainer, optim

    config = BertConfig(hidden_size=64, num_attention_heads=4, intermediate_size=128, num_hidden_layers=layers)
    model = BertForMaskedLM(config).train()
    ids = torch.randint(0, 1000, (4, 32))
    batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids}
    desc = {"inputs": [(name, ["batch", "sequence"]) for name in batch], "outputs": [("loss", [], True)]}
    trainer = ORTTrainer(model, desc, optim.AdamConfig())
    session, captured = trainer.prepare(**batch)
    plan = session.plan(StepKind.UPDATE, batch)
    return {**captured, **plan.seconds, "nodes": len(plan.model.graph)}


def main() -> None:
    """Print the table and append a row."""
    parser = Command(__doc__)
    parser.add_argument("--layers", type=int, nargs="+", default=[2, 4, 8, 16], help="of the model")
    parser.add_argument("--repeats", type=int, default=3, help="measurements of each")
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one is not None:
        report(measure_here(arguments.one))
        return
    table: dict[int, dict[str, float]] = {}
    for layers in arguments.layers:
        runs = [in_fresh_process("benchmarks.planning", "--one", str(layers)) for _ in range(arguments.repeats)]
        table[layers] = {key: min(run[key] for run in runs) for key in runs[0]}
    for figures in table.values():
        figures["capture"] = figures["export"] + figures["translate"]
        figures["planning"] = sum(figures[phase] for phase in PHASES[2:])
    columns = [*PHASES, "capture", "planning", "nodes"]
    print(f"{'layers':>6}" + "".join(f"{name:>16}" for name in columns))
    for layers, figures in table.items():
        print(
            f"{layers:>6}" + "".join(f"{figures[name]:>16.3f}" for name in columns[:-1]) + f"{figures['nodes']:>16.0f}"
        )
    fits = {}
    for name in ("capture", "planning"):
        x, y = np.array(list(table)), np.array([figures[name] for figures in table.values()])
        slope, fixed = np.polyfit(x, y, 1)
        off = float(np.max(np.abs(slope * x + fixed - y) / y))
        fits[name] = {"fixed_s": float(fixed), "per_layer_s": float(slope), "worst_deviation": off}
        print(f"{name}: {fixed:.3f} s + {slope:.3f} s a layer; no point is more than {off:.0%} off this line")
    append_row("planning", {"benchmark": "planning", "seconds": {str(k): v for k, v in table.items()}, "fits": fits})


if __name__ == "__main__":
    main()
