"""Reshape of a tensor without elements: which sizes a target means that has zeros or -1 in it.

[5, 0, 4] to [0, 4]          →  [0, 4]: copied from the input, the first size would make elements of none
[5, 0, 2, 4] to [0, 0, -1]   →  [5, 0, 8]
[5, 0, 4] to [-1, 4]         →  [0, 4]
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

__all__ = ["empty_target"]


def empty_target(node: ir.Node) -> np.ndarray | None:
    """Return the shape that a Reshape of no elements gives; None for any other node, and where no shape fits."""
    if node.op_type != "Reshape" or node.domain or "allowzero" in node.attributes:
        return None
    x, target = node.inputs
    if x is None or target is None or x.shape is None or target.const_value is None or not x.shape.is_static():
        return None
    before = list(x.shape.numpy())
    wanted = [int(size) for size in target.const_value.numpy()]
    if 0 not in before or not {0, -1} & set(wanted):
        return None
    copied = [before[i] if size == 0 and i < len(before) else size for i, size in enumerate(wanted)]
    for sizes, copies in ((copied, [i for i, size in enumerate(wanted) if size == 0]), (wanted, [])):
        shape = _resolved(sizes, before, copies)
        if 0 in shape:
            return np.array(shape, np.int64)
    return None


def _resolved(sizes: Sequence[int], before: Sequence[int], copies: Sequence[int]) -> list[int]:
    """Put a size in the place of -1: what the sizes leave that are not kept, if that tells, else none."""
    known = [size for size in sizes if size != -1]
    left = math.prod(size for i, size in enumerate(before) if i not in copies)
    named = math.prod(size for i, size in enumerate(sizes) if size != -1 and i not in copies)
    rest = left // named if 0 in known and named and left % named == 0 else 0
    return [rest if size == -1 else size for size in sizes]
