"""One row of the zoo: how to make a small random model and its batches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

__all__ = ["FIRST", "OTHER", "Batch", "Entry", "Family", "varying"]

Batch = dict[str, torch.Tensor]
"""Arguments of forward by name, labels among them."""

Family = str

FIRST, OTHER = (2, 6), (3, 9)
"""Batch size and length of the batch that a model is captured with, and of another that the same graph has to take."""


@dataclass(frozen=True)
class Entry:
    """A model of the zoo.

    Attributes:
        name: unique.
        family: the kind of architecture.
        make: a new module with random weights; forward returns a loss, or a result with the attribute `loss`.
        batch: a random batch of a size and a length, which models of images take for nothing.
        refused: for a model that is no single graph, so that ORTTrainer refuses it: words of the reason that the user
            is told. ORTModule trains it, in several graphs or in one that is sized as it runs.
        way_out: words of what the user is told to do instead.
        fixed: why a size that differs between batches cannot vary in the graph.
        dtype: of the numbers in which the model is judged.
    """

    name: str
    family: Family
    make: Callable[[], nn.Module]
    batch: Callable[[int, int], Batch]
    refused: str = ""
    way_out: str = ""
    fixed: str = ""
    dtype: torch.dtype = torch.float64


def varying(entry: Entry) -> list[dict[int, str]]:
    """Return for each input the axes that differ between batches of two sizes; equal pairs get equal names."""
    a, b = entry.batch(*FIRST), entry.batch(*OTHER)
    assert a.keys() == b.keys()
    return [
        {
            axis: "batch" if pair == (FIRST[0], OTHER[0]) else f"length_{pair[0]}_{pair[1]}"
            for axis, pair in enumerate(zip(a[name].shape, b[name].shape, strict=True))
            if pair[0] != pair[1]
        }
        for name in a
    ]
