"""Batches on their way to a device."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

import torch

from ontrain.internals import private

__all__ = ["on_device"]


def on_device(batches: Iterable[object], device: torch.device) -> Iterator[Any]:
    """Yield batches with their tensors on a device.

    To a GPU they go from pinned memory, on a stream of their own: while the step on one batch runs the next is on its
    way. So a batch is taken from `batches` before the one that is yielded was used.

    Args:
        batches: tensors in dictionaries, lists and tuples; what else is in them stays as it is.
        device: where to.
    """
    pytree = private("torch.utils._pytree")
    if device.type != "cuda":
        for batch in batches:
            yield pytree.tree_map_only(torch.Tensor, lambda t: t.to(device), batch)
        return
    uploads, source = torch.cuda.Stream(device), iter(batches)

    def sent(batch: object) -> Any:
        with torch.cuda.stream(uploads):
            return pytree.tree_map_only(torch.Tensor, lambda t: _pinned(t).to(device, non_blocking=True), batch)

    ahead = [sent(batch) for batch in islice(source, 1)]
    while ahead:
        batch, reader = ahead.pop(), torch.cuda.current_stream(device)
        reader.wait_stream(uploads)  # before the next one sets out, or it would be waited for, too
        for leaf in pytree.tree_leaves(batch):
            if isinstance(leaf, torch.Tensor):
                leaf.record_stream(reader)  # else its memory would be another batch's while it is still read
        ahead += [sent(following) for following in islice(source, 1)]
        yield batch


def _pinned(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.pin_memory() if tensor.device.type == "cpu" and not tensor.is_pinned() else tensor
