"""Where the values of a graph lie while it runs: what a provider that plans memory says of a graph beforehand."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

import onnx_ir as ir

__all__ = ["MemoryOf", "WorkingMemory"]


@dataclass(frozen=True)
class WorkingMemory:
    """Which values of a graph of concrete shapes share memory, and how many bytes each piece of memory has.

    Attributes:
        root: for each value the one whose memory it lies in; itself if it has its own.
        size: bytes of each root that takes working memory. Inputs, constants, and what is computed straight into a
            parameter, moment or gradient take none.
        lasting: roots that are handed out, so that they live to the end.
        scratch: bytes that a node needs while it runs, beside what it reads and gives; a node left out needs none.
    """

    root: Mapping[ir.Value, ir.Value]
    size: Mapping[ir.Value, int]
    lasting: Collection[ir.Value]
    scratch: Mapping[ir.Node, int]


MemoryOf = Callable[[ir.Graph], WorkingMemory]
"""memory_of(graph): what a provider says of a graph whose nodes run in their order."""
