"""The keys of an attention that some query sees, computed from the batch alone."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from ontrain.passes.rows.masks import find_mask
from ontrain.passes.rows.selection import keep_model

__all__ = ["seen_keys"]


def seen_keys(model: ir.Model, bias: ir.Value, shape: Sequence[int]) -> ir.Model | None:
    """Return a closed model of the keys that any query sees, bool [sequences, keys].

    Args:
        model: whose values they are.
        bias: what is added to the scores.
        shape: sequences, and keys of each.

    Returns:
        None if the mask hides the same in every batch, or the batch does not determine it.
    """
    mask = find_mask(model.graph, bias)
    if mask is None or not mask.computed:
        return None
    values = list(dict.fromkeys(v for v, _ in sorted(mask.computed, key=lambda leaf: str(leaf[0].name))))
    return keep_model(model, values, lambda op, copies: mask.seen(op, dict(zip(values, copies, strict=True)), shape))
