"""Tensors cut into several and joined into one."""

from __future__ import annotations

from typing import Any

from ontrain.capture.aten.registry import aten
from ontrain.capture.aten.view import padded
from ontrain.capture.context import AtenBuilder, Dim
from ontrain.operators import Value, each

__all__: list[str] = []


@aten("split", "split_with_sizes", "chunk", "tensor_split", "unsafe_split", "unsafe_chunk", "unsafe_split_with_sizes",
      "split_copy", "split_with_sizes_copy")  # fmt: skip
def split(op: AtenBuilder, x: Value, _: object, dim: int = 0) -> list[Value]:
    parts = op.node.meta["val"]
    if len(parts) == 1:
        return [x]
    sizes = op.sizes([op.shape_of_val(part)[dim] for part in parts])
    return list(each(op.Split(x, sizes, axis=dim, outputs=len(parts))))


@aten("unbind")
def unbind(op: AtenBuilder, x: Value, dim: int = 0) -> list[Value]:
    count = len(op.node.meta["val"])
    parts = each(op.Split(x, axis=dim, num_outputs=count, outputs=count)) if count > 1 else [x]
    return [op.Squeeze(part, [dim]) for part in parts]


@aten("cat", "concat", "concatenate")
def cat(op: AtenBuilder, tensors: list[Any], dim: int = 0) -> Value:
    # torch lets an empty vector join anything.
    parts = [op.cast(x, op.dtype) for x, shape in zip(tensors, op.listed_shapes(), strict=True) if shape != [0]]
    parts = parts or [op.cast(tensors[0], op.dtype)]
    return parts[0] if len(parts) == 1 else op.Concat(*parts, axis=dim)


@aten("stack")
def stack(op: AtenBuilder, tensors: list[Any], dim: int = 0) -> Value:
    axis = dim % len(op.shape)
    parts = [op.Unsqueeze(op.cast(x, op.dtype), [axis]) for x in tensors]
    return parts[0] if len(parts) == 1 else op.Concat(*parts, axis=axis)


@aten("pad_sequence")
def pad_sequence(
    op: AtenBuilder, sequences: list[Any], batch_first: bool = False, padding_value: float = 0.0,
    padding_side: str = "right",
) -> Value:  # fmt: skip
    """Sequences [length, ...] beside each other, each filled up to the length of the longest."""
    longest = op.shape[1 if batch_first else 0]
    rows = []
    for x, (length, *rest) in zip(sequences, op.listed_shapes(), strict=True):
        lack: list[Dim] = [longest - length, *[0] * len(rest)]
        nothing: list[Dim] = [0] * len(lack)
        sides = (lack, nothing) if padding_side == "left" else (nothing, lack)
        row = op.typed(padded(op, op.cast(x, op.dtype), *sides, "constant", padding_value), [longest, *rest])
        rows.append(op.Unsqueeze(row, [0 if batch_first else 1]))
    return rows[0] if len(rows) == 1 else op.Concat(*rows, axis=0 if batch_first else 1)
