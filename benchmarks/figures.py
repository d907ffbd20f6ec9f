"""What the pages are written from: the rows of results, and what their engines and workloads are called."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

__all__ = ["NAMES", "RESULTS", "WORKLOADS", "Row", "newest", "origin", "rows"]

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
    found = [row for row in rows(table) if all(row.get(key) == value for key, value in wanted.items())]
    return found[-1] if found else None


def origin(row: Row) -> str:
    hardware, versions = row["hardware"], row["versions"]
    return (
        f"{row['date']}, torch {versions['torch']}, Python {row['python']}, {hardware['cpu']}, "
        f"{hardware['cores']} cores{', AVX-512' if hardware['avx512'] else ''}; `{row['command']}`"
    )
