"""Molecules and graphs of several kinds of nodes: torch_geometric and e3nn."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from tests.capture.packages.entry import Batch, Loss, add, ids, numbers, unevenly
from tests.capture.packages.graphs import graph

__all__: list[str] = []


def molecule(name: str, **settings: Any) -> Callable[[], nn.Module]:
    """A network over atoms and their positions, whose neighbours it looks for itself."""

    def make() -> nn.Module:
        from torch_geometric.nn import models

        model = getattr(models, name)(interaction_graph=_neighbours, **settings) if name == "SchNet" else (
            getattr(models, name)(**settings))  # fmt: skip
        return Loss(model=model)

    return make


def _neighbours(positions: torch.Tensor, batch: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Each atom's neighbours in its molecule of four, and their distances."""
    atoms = torch.arange(positions.shape[0])
    source = atoms.repeat_interleave(3)
    target = (source // 4) * 4 + (source + torch.arange(1, 4).repeat(positions.shape[0])) % 4
    return torch.stack([source, target]), (positions[source] - positions[target]).norm(dim=-1)


def atoms(n: int) -> Batch:
    """Molecules of four atoms."""
    return ids(5, 4 * n), numbers(4 * n, 3), torch.arange(4 * n) // 4


add("SchNet", "torch_geometric", molecule("SchNet", hidden_channels=8, num_filters=8, num_interactions=1,
    num_gaussians=6), atoms)  # fmt: skip


def pna() -> nn.Module:
    """Principal neighbourhood aggregation: several aggregations, scaled by degree."""
    from torch_geometric.nn import PNAConv

    return Loss(model=PNAConv(4, 6, ["mean", "min", "max", "std"], ["identity", "amplification", "attenuation"],
                              torch.tensor([0, 1, 4])))  # fmt: skip


def gps() -> nn.Module:
    """GPS: messages along edges beside attention among all nodes of a graph."""
    from torch_geometric.nn import GATConv, GPSConv

    def forward(s: Any, x: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        return unevenly(s.model(x, edges, torch.arange(x.shape[0]) // 4))

    return Loss(forward, model=GPSConv(4, GATConv(4, 4), heads=2))


def hgt() -> nn.Module:
    """A transformer over nodes and edges of several types."""
    from torch_geometric.nn import HGTConv

    kinds = [("author", "writes", "paper"), ("paper", "cites", "paper")]

    def forward(s: Any, x: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        y = s.model({"author": x, "paper": x * 2}, dict.fromkeys(kinds, edges))
        return y["paper"]

    return Loss(forward, model=HGTConv(4, 8, (["author", "paper"], kinds), heads=2))


def rgcn() -> nn.Module:
    """A relational graph convolution, with a relation for each edge."""
    from torch_geometric.nn import RGCNConv

    def forward(s: Any, x: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        return s.model(x, edges, torch.arange(edges.shape[1]) % 3)

    return Loss(forward, model=RGCNConv(4, 6, num_relations=3, num_bases=2))


def edge_convolution() -> nn.Module:
    """A convolution by the differences along edges."""
    from torch_geometric.nn import EdgeConv

    return Loss(model=EdgeConv(nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 6))))


def set_to_set() -> nn.Module:
    """Graph isomorphism layers and Set2Set's readout."""
    from torch_geometric.nn import GINConv, Set2Set

    def forward(s: Any, x: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        return s.readout(s.layer(x, edges), torch.arange(x.shape[0]) // 4)

    return Loss(forward, layer=GINConv(nn.Linear(4, 6), train_eps=True), readout=Set2Set(6, processing_steps=2))


add("PNAConv", "torch_geometric", pna, graph)
add("GPSConv", "torch_geometric", gps, graph)
add("HGTConv", "torch_geometric", hgt, graph)
add("RGCNConv", "torch_geometric", rgcn, graph)
add("EdgeConv", "torch_geometric", edge_convolution, graph)
add("GIN and Set2Set", "torch_geometric", set_to_set, graph)


def equivariant() -> nn.Module:
    """An equivariant convolution: spherical harmonics of the edges, and a tensor product weighted by their lengths."""
    from e3nn import nn as layers, o3

    product = o3.FullyConnectedTensorProduct("4x0e + 2x1o", "1x0e + 1x1o", "4x0e + 2x1o", shared_weights=False)

    def forward(s: Any, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        edges, lengths = _neighbours(positions, positions)
        along = positions[edges[0]] - positions[edges[1]]
        directions = o3.spherical_harmonics("1x0e + 1x1o", along, normalize=True, normalization="component")
        messages = s.product(x[edges[1]], directions, s.radial(lengths[:, None]))
        return torch.zeros_like(x).index_add(0, edges[0], messages)

    return Loss(forward, product=product, radial=layers.FullyConnectedNet([1, 8, product.weight_numel], torch.tanh))


add("equivariant convolution", "e3nn", equivariant, lambda n: (numbers(4 * n, 10), numbers(4 * n, 3, seed=1)))
