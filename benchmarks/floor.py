"""The floor of a step: its own matrix products, each at the best rate that is found for it here.

    python -m benchmarks.floor [--model bert] [--layers 4] [--rounds 3] [--threads 2]

The products are those of the plan that ontrain runs, so work that it leaves out is not in the floor either. Each one
is timed in several formulations, which take turns: as the plan has it; with the factors copied into every order of
rows and columns (without the time of the copy); with rows of the result at cache lines; and by oneDNN. The fastest of
all rounds counts. Before each product the step itself is timed once; the share is the floor of the median step. "as
planned" is the same sum by ATen in the orders of the plan, which ONTRAIN_TUNE=0 takes. Rows go to
benchmarks/results/floor.jsonl.
"""

from __future__ import annotations

import functools
import os
import statistics
import time
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from benchmarks.commands import Command
from benchmarks.rows import append_row
from benchmarks.workloads import MODELS

if TYPE_CHECKING:
    from ontrain.providers.torch.products import Product

_ENOUGH = 0.02
"""Seconds that a formulation is repeated for in each round, so that small products are seen at all."""
_ROUNDS, _WARM_UP = 3, 3


def products(model: str, layers: int) -> tuple[Counter[Product], Callable[[], object]]:
    """Return the products of the step that ontrain plans for a model's first batch, and what makes that step."""
    from benchmarks.models import make
    from benchmarks.worker import make_trainer

    network, batches, *_ = make(model, layers)
    trainer = make_trainer(network, batches)
    for _ in range(_WARM_UP):
        trainer.train_step(**batches[0])
    (plan,) = trainer._run.session.plans.values()
    counts: Counter[Product] = plan.executable.products
    return counts, functools.partial(trainer.train_step, **batches[0])


def formulations(product: Product) -> dict[str, Callable[[], object]]:
    """Return ways to compute a product, by name; all on operands of their own."""
    import torch

    dtype = getattr(torch, product.dtype)
    sizes = (product.rows, product.inner), (product.inner, product.columns), (product.rows, product.columns)
    many = product.batch > 1
    multiply = torch.bmm if many else torch.mm

    def matrix(size: tuple[int, int], strides: tuple[int, int]) -> torch.Tensor:
        span = sum((n - 1) * s for n, s in zip(size, strides, strict=True)) + 1
        flat = torch.rand(product.batch * span, dtype=dtype)
        return flat.as_strided((product.batch, *size) if many else size, (span, *strides) if many else strides)

    def way(left: tuple[int, int], right: tuple[int, int], result: tuple[int, int]) -> Callable[[], object]:
        a, b, out = (matrix(size, s) for size, s in zip(sizes, (left, right, result), strict=True))
        return lambda: multiply(a, b, out=out)

    by_row, by_column = [(size[1], 1) for size in sizes], [(1, size[0]) for size in sizes]
    ways = {"as planned": way(product.left, product.right, product.result)}
    for left in (by_row[0], by_column[0]):
        for right in (by_row[1], by_column[1]):
            ways[f"{'NT'[left[0] == 1]}{'NT'[right[0] == 1]}"] = way(left, right, by_row[2])
    aligned = (-(-product.columns // 16) * 16, 1)
    if not many and aligned != by_row[2]:
        ways["aligned result"] = way(product.left, product.right, aligned)
    onednn = getattr(torch.ops.mkldnn, "_linear_pointwise", None)
    if onednn is not None and not many and product.dtype == "float32":
        a, w = matrix(sizes[0], by_row[0]), matrix((product.columns, product.inner), (product.inner, 1))
        ways["oneDNN"] = lambda: onednn(a, w, None, "none", [], "")
    return ways


def rates(product: Product, rounds: int) -> dict[str, float]:
    """Return the least seconds of each formulation; they take turns."""
    ways = formulations(product)
    best = dict.fromkeys(ways, float("inf"))
    for run in ways.values():
        run()
    for _ in range(rounds):
        for name, run in ways.items():
            spent, count = 0.0, 0
            while spent < _ENOUGH or not count:
                start = time.perf_counter()
                run()
                once = time.perf_counter() - start
                spent, count = spent + once, count + 1
                best[name] = min(best[name], once)
    return best


def measure(model: str, layers: int, rounds: int = _ROUNDS) -> dict[str, Any]:
    """Return the floor of a model's step in seconds, what its products take as planned, and the table behind it."""
    import torch

    table: list[dict[str, Any]] = []
    steps = list[float]()
    counts, step = products(model, layers)
    with torch.no_grad():
        for product, count in sorted(counts.items(), key=lambda item: -item[0].flops * item[1]):
            step()  # so that the one that is timed finds its own memory in the caches
            start = time.perf_counter()
            step()
            steps.append(time.perf_counter() - start)
            best = rates(product, rounds)
            winner = min(best, key=lambda name: best[name])
            table.append({
                "product": [product.batch, product.rows, product.columns, product.inner], "count": count,
                "gflop": product.flops * count / 1e9, "planned_s": best["as planned"] * count,
                "best_s": best[winner] * count, "best": winner,
            })  # fmt: skip
    return {
        "floor_s": sum(row["best_s"] for row in table),
        "step_s": statistics.median(steps),
        "planned_s": sum(row["planned_s"] for row in table),
        "gflop": sum(row["gflop"] for row in table),
        "products": table,
    }


def main() -> None:
    """Print the table and append a row per model."""
    parser = Command(__doc__)
    parser.add_argument("--model", action="append", choices=MODELS, help="may be repeated; by default bert and gpt2")
    parser.add_argument("--layers", type=int, default=4, help="of the model")
    parser.add_argument("--rounds", type=int, default=_ROUNDS, help="alternating rounds")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1, help="of torch")
    parser.add_argument("--no-row", action="store_true", help="print only")
    arguments = parser.parse_args()
    import torch

    torch.set_num_threads(arguments.threads)
    for model in arguments.model or ("bert", "gpt2"):
        figures = measure(model, arguments.layers, arguments.rounds)
        print(f"\n{model}, {arguments.layers} layers, {arguments.threads} threads")
        print(f"{'batch × rows × columns × inner':>34}{'times':>7}{'GFLOP':>8}{'planned':>10}{'best':>10} GFLOP/s")
        for row in figures["products"]:
            size = " × ".join(map(str, row["product"]))
            planned, best = (row["gflop"] / row[key] for key in ("planned_s", "best_s"))
            print(f"{size:>34}{row['count']:>7}{row['gflop']:>8.1f}{planned:>10.1f}{best:>10.1f} {row['best']}")
        floor, step = figures["floor_s"], figures["step_s"]
        planned = figures["planned_s"]
        print(f"floor {floor:.3f} s of a step's {step:.3f}: {floor / step:.2f}; as planned {planned:.3f} s")
        if not arguments.no_row:
            row = {"benchmark": "floor", "model": model, "layers": arguments.layers, "threads": arguments.threads}
            append_row("floor", {**row, **figures})


if __name__ == "__main__":
    main()
