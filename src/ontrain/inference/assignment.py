"""Which provider runs which nodes of a file, under onnxruntime's names."""

from __future__ import annotations

import dataclasses

__all__ = ["AssignedNode", "AssignedSubgraph"]


@dataclasses.dataclass(frozen=True)
class AssignedNode:
    """A node of the file, under onnxruntime's names."""

    name: str
    domain: str
    op_type: str


@dataclasses.dataclass(frozen=True)
class AssignedSubgraph:
    """Nodes that a provider runs one after another."""

    ep_name: str
    nodes: tuple[AssignedNode, ...]

    def get_nodes(self) -> list[AssignedNode]:
        """Return the nodes in the file's order."""
        return list(self.nodes)
