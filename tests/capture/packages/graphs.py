"""Layers and pooling of torch_geometric."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from tests.capture.packages.entry import Batch, Loss, add, numbers

__all__: list[str] = []


def graph_layer(name: str, *arguments: Any, **settings: Any) -> Callable[[], nn.Module]:
    """A convolution over a graph's edges."""

    def make() -> nn.Module:
        from torch_geometric import nn as layers

        return Loss(model=getattr(layers, name)(4, 6, *arguments, **settings))

    return make


def graph(n: int) -> Batch:
    """Nodes with four numbers each, and a ring of edges in both directions."""
    nodes = torch.arange(4 * n)
    ahead = (nodes + 1) % (4 * n)
    return numbers(4 * n, 4), torch.cat([torch.stack([nodes, ahead]), torch.stack([ahead, nodes])], 1)


def gcn_on_data() -> nn.Module:
    """A GCN whose forward reads a `Data`."""
    from torch_geometric.data import Data
    from torch_geometric.nn import GCNConv

    def forward(s: Any, x: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        data = Data(x=x, edge_index=edges)
        hidden = s.first(data.x, data.edge_index).relu()
        return s.second(hidden, data.edge_index)

    return Loss(forward, first=GCNConv(4, 6), second=GCNConv(6, 3))


def pooled(kind: str) -> Callable[[], nn.Module]:
    """A convolution and a pooling over the graphs of a batch."""

    def make() -> nn.Module:
        from torch_geometric import nn as layers

        def forward(s: Any, x: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
            x = s.first(x, edges).relu()
            if kind == "topk":
                x, _, _, batch, _, _ = s.pool(x, edges)
                return layers.global_mean_pool(x, batch, 1)
            return layers.global_mean_pool(x, torch.arange(x.shape[0]) // 4)

        modules = {"pool": layers.TopKPooling(6, ratio=0.5)} if kind == "topk" else {}
        return Loss(forward, first=layers.GCNConv(4, 6), **modules)

    return make


for _label, _layer, _settings in (
    ("GCNConv", "GCNConv", {}), ("GATConv", "GATConv", {"heads": 2}), ("GATv2Conv", "GATv2Conv", {"heads": 2}),
    ("ChebConv", "ChebConv", {"K": 2}), ("SGConv", "SGConv", {"K": 2}), ("GAT", "GAT", {"num_layers": 2}),
    ("SAGEConv", "SAGEConv", {}), ("TransformerConv", "TransformerConv", {"heads": 2}), ("GraphConv", "GraphConv", {}),
):  # fmt: skip
    add(_label, "torch_geometric", graph_layer(_layer, **_settings), graph)
add("GCN on Data", "torch_geometric", gcn_on_data, graph)
add("TopK pooling", "torch_geometric", pooled("topk"), graph)
add("mean pooling without size", "torch_geometric", pooled("mean"), graph)
