"""Arrays of numpy that forward makes of tensors: of whole numbers, as TimesNet does of the periods that it finds.

top = frequencies.topk(k).indices.cpu().numpy()
periods = x.shape[1] // top     →   an array of numbers that vary, each read off the tensor

Of other numbers there is no array in a trace. What scipy matches by costs takes a stand-in for it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from ontrain.capture.autograd import traced_here

__all__ = ["TracedArray", "listed", "numbers_of"]

_FEW = 64
"""Numbers that a trace reads one by one; each is an operator, and perhaps a branch."""
_WHOLE = frozenset({torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8})


class TracedArray:
    """What a tensor of the trace gives for an array: costs, of which a loss selects and by which it matches.

    Args:
        tensor: of the trace.
        error: of torch, which has no array of it; raised where the array is used otherwise.
    """

    def __init__(self, tensor: torch.Tensor, error: RuntimeError) -> None:
        self.tensor, self._error = tensor, error

    @property
    def shape(self) -> Sequence[Any]:
        """Sizes."""
        return self.tensor.shape

    def __len__(self) -> int:
        return len(self.tensor)

    def __getitem__(self, place: Any) -> TracedArray:
        return TracedArray(self.tensor[place], self._error)

    def __neg__(self) -> TracedArray:
        return TracedArray(-self.tensor, self._error)

    def __getattr__(self, name: str) -> Any:
        raise self._error

    def _refuse(self, *_: Any, **__: Any) -> Any:
        raise self._error

    __array__ = __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _refuse
    __floordiv__ = __rfloordiv__ = __pow__ = __rpow__ = __lt__ = __le__ = __gt__ = __ge__ = _refuse


def numbers_of(input: torch.Tensor, *options: Any, **named: Any) -> Any:
    """Return `input.numpy()`; in a trace an array of numbers that vary, or a stand-in for one of costs."""
    count = input.numel() if input.dtype in _WHOLE and type(input) is not torch.Tensor and traced_here() else None
    if not isinstance(count, int) or count > _FEW:
        try:
            return input.numpy(*options, **named)
        except RuntimeError as error:
            if not _may_be_costs(input):
                raise
            return TracedArray(input, error)
    array = np.empty(count, object)
    for at, number in enumerate(input.flatten().tolist()):
        array[at] = number
    return array.reshape(tuple(input.shape))


def _may_be_costs(tensor: torch.Tensor) -> bool:
    return "scipy.optimize" in sys.modules and tensor.is_floating_point() and not tensor.requires_grad and traced_here()


def listed(index: Any) -> Any:
    """Return an index as torch takes it: an array of numbers that vary as a list of them."""
    return index.tolist() if isinstance(index, np.ndarray) and index.dtype == object else index
