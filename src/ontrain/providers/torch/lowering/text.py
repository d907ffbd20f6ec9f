"""Counts of n-grams."""

from __future__ import annotations

import onnx_ir as ir
import torch

from ontrain.graph import static_dims
from ontrain.providers.torch.emitter import Emitter
from ontrain.providers.torch.lowering.registry import Attributes, attributes, lowers

__all__: list[str] = []


def _counts_numbers(node: ir.Node) -> bool:
    return "pool_int64s" in node.attributes


@lowers("TfIdfVectorizer", when=_counts_numbers)
def tf_idf_vectorizer(e: Emitter, node: ir.Node) -> None:
    a = attributes(node)
    width = static_dims(node.outputs[0])[-1]
    e.compute(lambda x: _weighed(x, a, width), e.value(node.inputs[0]), outs=[e.out(node.outputs[0])])


def _weighed(x: torch.Tensor, a: Attributes, width: int) -> torch.Tensor:
    """Counts, 0 or 1, or counts, times a weight: by the modes TF, IDF and TFIDF."""
    rows = x.reshape(-1, x.shape[-1]) if x.dim() else x.reshape(1, 1)
    pool, starts = a["pool_int64s"], [*a["ngram_counts"], len(a["pool_int64s"])]
    counts = []
    for length, (start, end) in enumerate(zip(starts, starts[1:], strict=False), start=1):
        grams = torch.tensor(pool[start:end], dtype=torch.int64, device=x.device).reshape(-1, length)
        wanted = a["min_gram_length"] <= length <= a["max_gram_length"]
        skips = a["max_skip_count"] if length > 1 else 0
        counts.append(_found(rows, grams, skips) if wanted else rows.new_zeros(len(rows), len(grams)).float())
    counted = torch.cat(counts, 1)
    if a["mode"] != "TF":
        counted = counted.clamp_max(1.0) if a["mode"] == "IDF" else counted
        counted = counted * torch.tensor(a.get("weights") or [1.0] * counted.shape[1], device=x.device)
    places = torch.tensor(a["ngram_indexes"], dtype=torch.int64, device=x.device)
    result = torch.zeros(len(rows), width, device=x.device).index_add_(1, places, counted)
    return result.reshape(*x.shape[:-1], width)


def _found(rows: torch.Tensor, grams: torch.Tensor, skips: int) -> torch.Tensor:
    """How often each n-gram stands in each row, with up to `skips` elements left out between neighbours."""
    length = grams.shape[1]
    total = torch.zeros(len(rows), len(grams), device=rows.device)
    for step in range(1, skips + 2):
        reach = (length - 1) * step + 1
        if reach > rows.shape[1]:
            break
        windows = rows.unfold(1, reach, 1)[..., ::step].long()
        total += (windows[:, :, None] == grams).all(-1).sum(1)
    return total
