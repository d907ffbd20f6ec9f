"""More layers, pooling and whole models of torch_geometric."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from tests.capture.packages.entry import Batch, Loss, add, numbers, unevenly
from tests.capture.packages.graphs import graph

__all__: list[str] = []


def read_by(read: Callable[..., Any], name: str, *arguments: Any, **settings: Any) -> Callable[[], nn.Module]:
    """A layer of torch_geometric that `read(layer, x, edges)` calls."""

    def make() -> nn.Module:
        from torch_geometric import nn as layers

        def forward(s: Any, x: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
            y = read(s.model, x, edges)
            return unevenly(y[0] if isinstance(y, tuple) else y)

        built = [argument() if callable(argument) else argument for argument in arguments]
        return Loss(forward, model=getattr(layers, name)(*built, **settings))

    return make


def _groups(x: torch.Tensor) -> torch.Tensor:
    """The graph of each node: four nodes have one."""
    return torch.arange(x.shape[0]) // 4


def _plain(layer: Any, x: torch.Tensor, edges: torch.Tensor) -> Any:
    return layer(x, edges)


def _grouped(layer: Any, x: torch.Tensor, edges: torch.Tensor) -> Any:
    return layer(x, _groups(x))


for _name, _read, *_arguments in (
    ("TAGConv", _plain, 4, 6), ("ARMAConv", _plain, 4, 6), ("GatedGraphConv", _plain, 6, 2),
    ("ResGatedGraphConv", _plain, 4, 6), ("FiLMConv", _plain, 4, 6), ("GENConv", _plain, 4, 6),
    ("LEConv", _plain, 4, 6), ("ClusterGCNConv", _plain, 4, 6), ("MFConv", _plain, 4, 6), ("AGNNConv", _plain),
    ("CGConv", _plain, 4), ("HypergraphConv", _plain, 4, 6), ("SAGPooling", _plain, 4), ("GraphSAGE", _plain, 4, 6, 2),
    ("GCN2Conv", lambda layer, x, edges: layer(x, x, edges), 4, 0.1, 0.5, 1),
    ("FAConv", lambda layer, x, edges: layer(x, x, edges), 4),
    ("NNConv", lambda layer, x, edges: layer(x, edges, (edges * 0.1).T.to(x.dtype)), 4, 6, lambda: nn.Linear(2, 24)),
    ("GraphNorm", _grouped, 4), ("LSTMAggregation", _grouped, 4, 6),
    ("AttentionalAggregation", _grouped, lambda: nn.Linear(4, 1)),
    ("PowerMeanAggregation", lambda layer, x, edges: layer(x.abs() + 0.1, _groups(x)), 1.0, True),
    ("GraphMultisetTransformer", _grouped, 4, 3), ("DiffGroupNorm", lambda layer, x, edges: layer(x), 4, 2),
    ("EdgePooling", lambda layer, x, edges: layer(x, edges, _groups(x)), 4), ("GraphUNet", _plain, 4, 6, 3, 2),
    ("SuperGATConv", _plain, 4, 6),
):  # fmt: skip
    add(_name, "torch_geometric", read_by(_read, _name, *_arguments), graph)
add("SuperGATConv with negative edges", "torch_geometric", read_by(
    lambda layer, x, edges: layer(x, edges, edges.flip(0)[:, 1:]), "SuperGATConv", 4, 6), graph)  # fmt: skip


def pooled_densely() -> nn.Module:
    """Nodes pooled into clusters that a layer assigns, with the losses of the assignment."""
    from torch_geometric.nn import DenseSAGEConv, dense_diff_pool

    def forward(s: Any, x: torch.Tensor, adjacency: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        assigned, hidden = s.assign(x, adjacency, mask), s.embed(x, adjacency, mask)
        x, adjacency, link, entropy = dense_diff_pool(hidden, adjacency, assigned, mask)
        return x.pow(2).mean() + adjacency.pow(2).mean() + link + entropy

    return Loss(forward, assign=DenseSAGEConv(4, 3), embed=DenseSAGEConv(4, 6))


def dense_graphs(n: int) -> Batch:
    """Graphs of three and more nodes as matrices."""
    return numbers(n, 5, 4), numbers(n, 5, 5).sigmoid(), torch.arange(5)[None] < 3 + torch.arange(n)[:, None]


def autoencoder_of_edges() -> nn.Module:
    """GAE: edges are told from the products of the nodes' codes."""
    from torch_geometric.nn import GAE, GCNConv

    def forward(s: Any, x: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        return -torch.log(s.model.decode(s.model.encode(x, edges), edges) + 1e-15).mean()

    return Loss(forward, model=GAE(GCNConv(4, 6)))


def infomax() -> nn.Module:
    """Deep Graph Infomax: nodes against those of a corrupted graph."""
    from torch_geometric.nn import DeepGraphInfomax, GCNConv

    model = DeepGraphInfomax(
        hidden_channels=6, encoder=GCNConv(4, 6), summary=lambda z, *_, **__: z.mean(0).sigmoid(),
        corruption=lambda x, edges: (x.flip(0), edges),
    )  # fmt: skip
    return Loss(lambda s, x, edges: s.model.loss(*s.model(x, edges)), model=model)


add("dense_diff_pool", "torch_geometric", pooled_densely, dense_graphs)
add("GAE", "torch_geometric", autoencoder_of_edges, graph)
add("Deep Graph Infomax", "torch_geometric", infomax, graph)
