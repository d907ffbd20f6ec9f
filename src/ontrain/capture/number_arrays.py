"""Arrays of numpy that forward makes of whole numbers in tensors, as TimesNet does of the periods that it finds.

top = frequencies.topk(k).indices.cpu().numpy()
periods = x.shape[1] // top     →   an array of numbers that vary, each read off the tensor
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from ontrain.capture.autograd import traced_here

__all__ = ["listed", "numbers_of"]

_FEW = 64
"""Numbers that a trace reads one by one; each is an operator, and perhaps a branch."""
_WHOLE = frozenset({torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8})


def numbers_of(input: torch.Tensor, *options: Any, **named: Any) -> Any:
    """Return `input.numpy()`; of a few whole numbers without values an array of numbers that vary."""
    count = input.numel() if input.dtype in _WHOLE and type(input) is not torch.Tensor and traced_here() else None
    if not isinstance(count, int) or count > _FEW:
        return input.numpy(*options, **named)
    array = np.empty(count, object)
    for at, number in enumerate(input.flatten().tolist()):
        array[at] = number
    return array.reshape(tuple(input.shape))


def listed(index: Any) -> Any:
    """Return an index as torch takes it: an array of numbers that vary as a list of them."""
    return index.tolist() if isinstance(index, np.ndarray) and index.dtype == object else index
