"""What wrapping costs a small model: forward + backward of ORTModule against eager, and the seconds of the first step.

    python -m benchmarks.ortmodule [--repeats 200] [--rounds 5]

A decoder of 2 layers, 64 wide, 4 heads, on 4 sequences of 16 tokens, cross entropy: little work, so that overhead
shows. The two take turns in one process, step by step; timed are forward and backward. Rounds are fresh processes.
`first` is what the first step of the wrapped model takes; `export` is how long torch.export alone takes of it.
Rows go to benchmarks/results/ortmodule.jsonl.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import time
from typing import Any

from benchmarks.commands import Command
from benchmarks.fresh import in_fresh_process, report
from benchmarks.rows import append_row


def measure_here(repeats: int) -> dict[str, float]:
    """Measure in this process."""
    import torch

    from ontrain.training.ortmodule import ORTModule

    torch.manual_seed(0)
    plain = _decoder()
    wrapped = ORTModule(copy.deepcopy(plain))
    ids = torch.randint(0, 100, (4, 16))
    spent: dict[str, list[float]] = {"eager": [], "ontrain": []}
    started = time.perf_counter()
    wrapped(ids, ids).backward()
    first = time.perf_counter() - started
    for step in range(repeats + 20):
        for name, model in (("eager", plain), ("ontrain", wrapped)):
            model.zero_grad(set_to_none=True)
            started = time.perf_counter()
            model(ids, ids).backward()
            if step >= 20:
                spent[name].append(time.perf_counter() - started)
    seconds = wrapped._engine.entries[0].captured.seconds
    medians = {name: statistics.median(times) for name, times in spent.items()}
    return {**medians, "first": first, "export": seconds["export"]}


def _decoder() -> Any:
    import torch
    from torch import nn

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(64), nn.LayerNorm(64)
            self.qkv, self.out = nn.Linear(64, 192), nn.Linear(64, 64)
            self.up, self.down = nn.Linear(64, 256), nn.Linear(256, 64)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            q, k, v = (t.unflatten(-1, (4, 16)).transpose(1, 2) for t in self.qkv(self.norm1(x)).chunk(3, -1))
            y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(y.transpose(1, 2).flatten(2))
            return x + self.down(nn.functional.gelu(self.up(self.norm2(x))))

    class Decoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(100, 64)
            self.blocks = nn.Sequential(Block(), Block())
            self.norm, self.head = nn.LayerNorm(64), nn.Linear(64, 100)

        def forward(self, ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
            logits = self.head(self.norm(self.blocks(self.embed(ids))))
            return nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())

    return Decoder()


def main() -> None:
    """Print the table and append a row."""
    parser = Command(__doc__)
    parser.add_argument("--repeats", type=int, default=200, help="measurements of each")
    parser.add_argument("--rounds", type=int, default=5, help="alternating rounds")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        report(measure_here(arguments.repeats))
        return
    runs = []
    for _ in range(arguments.rounds):
        runs.append(in_fresh_process("benchmarks.ortmodule", "--one", "--repeats", str(arguments.repeats)))
        print({name: round(value * 1e3, 3) for name, value in runs[-1].items()}, "ms")
    ratio = statistics.median(run["eager"] / run["ontrain"] for run in runs)
    beyond = statistics.median(run["first"] - run["export"] for run in runs)
    print(f"eager / ORTModule {ratio:.2f}; the first step takes {beyond:.2f} s beyond torch.export")
    append_row("ortmodule", {"benchmark": "ortmodule", "ratio": ratio, "beyond_export_s": beyond, "runs": runs})


if __name__ == "__main__":
    main()
