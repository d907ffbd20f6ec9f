"""What the pages are written from: the rows of results, and what their engines and workloads are called."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

__all__ = [
    "EPOCH_TITLES",
    "NAMES",
    "RESULTS",
    "WORKLOADS",
    "Row",
    "marks_of",
    "newest",
    "newest_of_each",
    "origin",
    "processor",
    "rows",
]

Row = dict[str, Any]
RESULTS = Path(__file__).parent / "results"
WORKLOADS = {
    "bert": "BERT, masked language model, 8 × 128, 15 % labelled, loss alone read",
    "bert-logits": "BERT, masked language model, 8 × 128, 15 % labelled, loss and logits read",
    "bert-dense": "BERT, masked language model, 8 × 128, every token labelled, loss alone read",
    "gpt2": "GPT-2, causal language model, 2 × 512, loss alone read",
    "gpt2-logits": "GPT-2, causal language model, 2 × 512, loss and logits read",
    "cola": "BERT on 16 batches of CoLA, 32 sentences padded to the longest, loss alone read",
    "xquad": "BERT on 8 batches of XQuAD, 8 windows padded to 384, loss alone read",
}
EPOCH_TITLES = {
    "cola-epoch": "BERT on CoLA as it comes, 32 sentences padded to the longest",
    "xquad-epoch": "BERT on XQuAD as it comes, 8 windows padded to the longest",
}
NAMES = {
    "ontrain": "ontrain, ORTTrainer",
    "ontrain-aten": "ontrain, ORTTrainer with eager's products",
    "ontrain-budget": "ontrain, ORTTrainer in 0.55 of its working memory",
    "ontrain-hidden": "ontrain, ORTTrainer, padding no answer (another loss)",
    "ontrain-onnxruntime": "ontrain, ORTTrainer on stock onnxruntime",
    "ortmodule": "ontrain, ORTModule in eager's loop",
    "eager": "eager PyTorch, fused AdamW",
    "eager-malloc": "eager, malloc tuned to keep its pages",
    "compile": "torch.compile",
    "ontrain-plain": "ontrain, ORTTrainer without CUDA graphs",
    "eager-chunked": "eager, linear_cross_entropy",
    "compile-chunked": "torch.compile, linear_cross_entropy",
    "compile-reduce-overhead": "torch.compile, reduce-overhead",
    "compile-max-autotune": "torch.compile, max-autotune",
    "incumbent": "onnxruntime-training 1.19.2",
}


def rows(table: str) -> list[Row]:
    """Return the rows of a table, oldest first."""
    path = RESULTS / f"{table}.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def newest(table: str, **wanted: Any) -> Row | None:
    """Return the last row whose fields have these values."""
    matching = [row for row in rows(table) if all(row.get(key) == value for key, value in wanted.items())]
    return matching[-1] if matching else None


def newest_of_each(table: str, **wanted: Any) -> list[Row]:
    """Return the last row of each processor whose fields have these values, the latest generation first.

    Rows that say nothing of generations count only where there are no others.
    """
    matching = [row for row in rows(table) if all(row.get(key) == value for key, value in wanted.items())]
    noted = [row for row in matching if "generation" in row["hardware"]]
    last = {processor(row): row for row in noted or matching}
    return [last[name] for name in sorted(last, reverse=True)]


def marks_of(row: Row) -> list[int]:
    """Return the numbers of steps after which an epoch's sums were written down."""
    figures = next(iter(row["engines"].values()))
    return [int(name.removeprefix("ratio_")) for name in figures if name.startswith("ratio_")]


def processor(row: Row) -> str:
    """Return the processor's name, with its generation or its units for tiles where the row notes them."""
    hardware = row["hardware"]
    known = hardware.get("generation") or ("AMX" if hardware.get("amx") else None)
    return f"{hardware['cpu']} ({known})" if known else str(hardware["cpu"])


def origin(row: Row) -> str:
    """Return when, with what and on what a row was measured, and the command."""
    hardware, versions = row["hardware"], row["versions"]
    return (
        f"{row['date']}, torch {versions['torch']}, Python {row['python']}, {processor(row)}, "
        f"{hardware['cores']} cores{', AVX-512' if hardware['avx512'] else ''}; `{row['command']}`"
    )
