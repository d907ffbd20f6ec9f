"""Models of graphs, sets, tables and densities, and mixtures of experts."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from tests.models.zoo.entry import Batch, Entry

__all__ = ["ENTRIES"]


def graph(batch: int, length: int) -> Batch:
    """Nodes, and edges as pairs of them; every node has an edge to itself, so that none is without a neighbour."""
    nodes = 2 * length
    loops = torch.arange(nodes).repeat(2, 1)
    return {
        "x": torch.randn(nodes, 6),
        "edges": torch.cat([torch.randint(0, nodes, (2, 5 * batch)), loops], 1),
        "label": torch.randint(0, 3, (nodes,)),
    }


class GCN(nn.Module):
    """Two graph convolutions with symmetric normalisation, by index_add: Kipf and Welling 2017."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, x: torch.Tensor, edges: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        source, target = edges
        degree = x.new_zeros(x.shape[0]).index_add(0, target, torch.ones_like(target, dtype=x.dtype))
        weight = (degree[source] * degree[target]).rsqrt().unsqueeze(1)

        def spread(h: torch.Tensor) -> torch.Tensor:
            return torch.zeros_like(h).index_add(0, target, weight * h[source])

        return F.cross_entropy(spread(self.two(F.relu(spread(self.one(x))))), label)


class GAT(nn.Module):
    """Graph attention: a softmax over each node's edges, by scatter_reduce: Velickovic et al. 2018."""

    def __init__(self) -> None:
        super().__init__()
        self.project, self.out = nn.Linear(6, 8, bias=False), nn.Linear(8, 3)
        self.source, self.target = nn.Parameter(torch.randn(2, 4)), nn.Parameter(torch.randn(2, 4))

    def forward(self, x: torch.Tensor, edges: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        h = self.project(x).unflatten(-1, (2, 4))
        score = F.leaky_relu(((h * self.source).sum(-1))[edges[0]] + ((h * self.target).sum(-1))[edges[1]], 0.2)
        at = edges[1].unsqueeze(1).expand_as(score)
        empty = score.new_zeros(x.shape[0], 2)
        highest = empty.scatter_reduce(0, at, score, "amax", include_self=False)
        weight = torch.exp(score - highest.detach()[edges[1]])
        weight = weight / empty.scatter_add(0, at, weight)[edges[1]]
        y = torch.zeros_like(h).index_add(0, edges[1], weight.unsqueeze(-1) * h[edges[0]])
        return F.cross_entropy(self.out(F.elu(y).flatten(1)), label)


class GraphSAGE(nn.Module):
    """The mean and the maximum over neighbours, by scatter_reduce: Hamilton et al. 2017."""

    def __init__(self) -> None:
        super().__init__()
        self.own, self.mean, self.top = nn.Linear(6, 3), nn.Linear(6, 3), nn.Linear(6, 3)

    def forward(self, x: torch.Tensor, edges: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        at, sent = edges[1].unsqueeze(1).expand(-1, 6), x[edges[0]]
        mean = torch.zeros_like(x).scatter_reduce(0, at, sent, "mean", include_self=False)
        top = torch.zeros_like(x).scatter_reduce(0, at, self.top.weight.sum() * sent, "amax", include_self=False)
        return F.cross_entropy(self.own(x) + self.mean(mean) + self.top(top), label)


class MessagePassing(nn.Module):
    """Messages over edges and a GRU as update, summed for the whole graph: Gilmer et al. 2017."""

    def __init__(self) -> None:
        super().__init__()
        self.message, self.update, self.out = nn.Linear(12, 6), nn.GRUCell(6, 6), nn.Linear(6, 3)

    def forward(self, x: torch.Tensor, edges: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        for _ in range(2):
            sent = F.relu(self.message(torch.cat([x[edges[0]], x[edges[1]]], -1)))
            x = self.update(torch.zeros_like(x).index_add(0, edges[1], sent), x)
        return F.cross_entropy(self.out(x), label) + 0.01 * x.sum(0).square().sum()


class PointNet(nn.Module):
    """A network shared by points, their maximum, and the distances between them: Qi et al. 2017."""

    def __init__(self) -> None:
        super().__init__()
        self.points = nn.Sequential(nn.Conv1d(3, 8, 1), nn.BatchNorm1d(8), nn.ReLU(), nn.Conv1d(8, 8, 1))
        self.head = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        top = self.points(x.transpose(1, 2)).max(-1).values
        return F.cross_entropy(self.head(top), label)


class DeepSets(nn.Module):
    """A masked sum over a set: Zaheer et al. 2017."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = (
            nn.Sequential(nn.Linear(4, 8), nn.Tanh()),
            nn.Sequential(nn.Linear(8, 8), nn.SELU(), nn.Linear(8, 1)),
        )

    def forward(self, x: torch.Tensor, present: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        total = self.inner(x).masked_fill(~present.unsqueeze(-1), 0.0).sum(1)
        return F.huber_loss(self.outer(total).squeeze(-1), target)


class Recommender(nn.Module):
    """Bags of embeddings, pairwise products, and a network on top: DLRM, Naumov et al. 2019."""

    def __init__(self) -> None:
        super().__init__()
        self.bags = nn.ModuleList(nn.EmbeddingBag(10, 4, mode=mode) for mode in ("sum", "mean"))
        self.dense, self.top = nn.Linear(3, 4), nn.Sequential(nn.Linear(7, 8), nn.ReLU(), nn.Linear(8, 1))

    def forward(self, x: torch.Tensor, ids: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        parts = torch.stack([F.relu(self.dense(x)), *(bag(ids[:, i]) for i, bag in enumerate(self.bags))], 1)
        rows, columns = torch.tril_indices(3, 3, offset=-1)
        pairs = torch.bmm(parts, parts.transpose(1, 2))[:, rows, columns]
        return F.binary_cross_entropy_with_logits(self.top(torch.cat([parts[:, 0], pairs], 1)).squeeze(1), label)


class FactorisationMachine(nn.Module):
    """First and second order interactions of sparse features: Rendle 2010."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.factors, self.bias = nn.Embedding(20, 1), nn.Embedding(20, 4), nn.Parameter(torch.zeros(1))

    def forward(self, ids: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        v = self.factors(ids)
        second = 0.5 * (v.sum(1).square() - v.square().sum(1)).sum(1)
        return F.binary_cross_entropy(torch.sigmoid(self.bias + self.linear(ids).sum((1, 2)) + second), label)


class Experts(nn.Module):
    """A sparse mixture of experts: every expert sees all tokens, weights of those not chosen are zero."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(6, 4, bias=False)
        self.up, self.down = nn.Parameter(torch.randn(4, 6, 8)), nn.Parameter(torch.randn(4, 8, 6))

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        probabilities = self.router(x).softmax(-1)
        top, at = probabilities.topk(2, -1)
        weights = torch.zeros_like(probabilities).scatter(-1, at, top / top.sum(-1, keepdim=True))
        y = torch.einsum("nte,eih,nti->nteh", weights, self.up, x)
        y = torch.einsum("nteh,ehi->nti", F.silu(y), self.down)
        share = F.one_hot(at, 4).sum(2).to(x.dtype).mean((0, 1))
        return F.mse_loss(y, target) + 0.1 * (share * probabilities.mean((0, 1))).sum()


class Capacity(nn.Module):
    """Switch routing with a fixed capacity: tokens go to slots by their rank within an expert: Fedus et al. 2021."""

    def __init__(self) -> None:
        super().__init__()
        self.router, self.experts = nn.Linear(6, 3), nn.ModuleList(nn.Linear(6, 6) for _ in range(3))

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        flat = x.flatten(0, 1)
        gate, choice = self.router(flat).softmax(-1).max(-1)
        chosen = F.one_hot(choice, 3)
        rank = (chosen.cumsum(0) * chosen).sum(-1) - 1
        dispatch = F.one_hot(rank.clamp(0, 3), 4).unsqueeze(1) * chosen.unsqueeze(-1) * (rank < 4)[:, None, None]
        dispatch = dispatch.to(x.dtype)
        slots = torch.einsum("tes,ti->esi", dispatch, flat)
        experts = torch.stack([expert(slot) for expert, slot in zip(self.experts, slots, strict=True)])
        y = gate.unsqueeze(-1) * torch.einsum("tes,esi->ti", dispatch, experts)
        return F.mse_loss(y.view_as(x), target)


class RealNVP(nn.Module):
    """Affine coupling layers and the likelihood they give: Dinh et al. 2017."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 4)) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        total = x.new_zeros(x.shape[0])
        for layer in self.layers:
            a, b = x.chunk(2, 1)
            scale, shift = layer(a).chunk(2, 1)
            scale = torch.tanh(scale)
            x = torch.cat([b * scale.exp() + shift, a], 1)
            total = total + scale.sum(1)
        return (0.5 * x.square().sum(1) + 2 * math.log(2 * math.pi) - total).mean()


class Glow(nn.Module):
    """Actnorm, an invertible 1x1 convolution in its LU form, coupling and squeezing: Kingma and Dhariwal 2018."""

    def __init__(self) -> None:
        super().__init__()
        self.shift, self.log_scale = nn.Parameter(torch.zeros(1, 4, 1, 1)), nn.Parameter(torch.zeros(1, 4, 1, 1))
        self.lower, self.upper = (nn.Parameter(torch.randn(4, 4)) for _ in range(2))
        self.diagonal = nn.Parameter(torch.randn(4))
        self.coupling = nn.Sequential(nn.Conv2d(2, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 4, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.pixel_unshuffle(x, 2)
        x = (x + self.shift) * self.log_scale.exp()
        ones = torch.eye(4, device=x.device)
        weight = (self.lower.tril(-1) + ones) @ (self.upper.triu(1) + torch.diag(self.diagonal.exp()))
        x = F.conv2d(x, weight[:, :, None, None])
        a, b = x.chunk(2, 1)
        scale, shift = self.coupling(a).chunk(2, 1)
        scale = torch.sigmoid(scale + 2)
        x = torch.cat([a, (b + shift) * scale], 1)
        places = x.shape[2] * x.shape[3]
        volume = places * (self.log_scale.sum() + self.diagonal.sum()) + scale.log().sum((1, 2, 3))
        return (0.5 * x.square().sum((1, 2, 3)) - volume).mean()


class Spline(nn.Module):
    """A monotone rational-quadratic spline, its bins found by comparison: Durkan et al. 2019."""

    def __init__(self) -> None:
        super().__init__()
        self.widths, self.heights, self.slopes = (nn.Parameter(torch.randn(n)) for n in (5, 5, 6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        w, h, d = self.widths.softmax(0), self.heights.softmax(0), F.softplus(self.slopes)
        left, low = F.pad(w.cumsum(0), (1, 0)), F.pad(h.cumsum(0), (1, 0))
        at = ((x.unsqueeze(-1) >= left[:-1]).sum(-1) - 1).clamp(0, 4)
        t = ((x - left[at]) / w[at]).clamp(0, 1)
        s = h[at] / w[at]
        y = low[at] + h[at] * (s * t * t + d[at] * t * (1 - t)) / (s + (d[at + 1] + d[at] - 2 * s) * t * (1 - t))
        return (y - x.square()).square().mean()


class VAE(nn.Module):
    """A variational autoencoder; the noise of the reparametrisation is an input, so that two engines draw the same."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = nn.Linear(8, 8), nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8))

    def forward(self, x: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
        mean, log_variance = self.encoder(x).chunk(2, 1)
        decoded = self.decoder(mean + torch.exp(0.5 * log_variance) * noise)
        divergence = -0.5 * (1 + log_variance - mean.square() - log_variance.exp()).sum(1)
        return (
            F.binary_cross_entropy_with_logits(decoded, x.sigmoid(), reduction="sum") / x.shape[0] + divergence.mean()
        )


class Quantised(nn.Module):
    """Nearest codes with a straight-through gradient: van den Oord et al. 2017."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder, self.codes = nn.Linear(8, 4), nn.Linear(4, 8), nn.Embedding(6, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        z = self.encoder(x)
        distance = z.square().sum(1, keepdim=True) - 2 * z @ self.codes.weight.t() + self.codes.weight.square().sum(1)
        code = self.codes(distance.argmin(1))
        decoded = self.decoder(z + (code - z).detach())
        return F.mse_loss(decoded, x) + F.mse_loss(code, z.detach()) + 0.25 * F.mse_loss(z, code.detach())


class Siamese(nn.Module):
    """One encoder on two inputs under a contrastive loss over the batch: Chen et al. 2020."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(8, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Linear(12, 6))

    def forward(self, x: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        a, b = F.normalize(self.encoder(x), dim=1), F.normalize(self.encoder(other), dim=1)
        logits = a @ b.t() / 0.5
        label = torch.arange(x.shape[0], device=x.device)
        apart = F.triplet_margin_loss(a, b, a.roll(1, 0))
        return F.cross_entropy(logits, label) + F.cosine_embedding_loss(a, b, torch.ones_like(a[:, 0])) + apart


class NeRF(nn.Module):
    """Sines of coordinates, a network with a skip, and rendering by a cumulative product: Mildenhall et al. 2020."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.out = nn.Linear(12, 16), nn.Linear(28, 16), nn.Linear(16, 4)

    def forward(self, points: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        angles = torch.cat([points, 2 * points], -1)
        x = torch.cat([angles.sin(), angles.cos()], -1)
        h = F.relu(self.two(torch.cat([F.relu(self.one(x)), x], -1)))
        colour, density = self.out(h).split([3, 1], -1)
        clear = torch.exp(-F.softplus(density).squeeze(-1) * 0.1)
        through = torch.cumprod(F.pad(clear, (1, 0), value=1.0), -1)[:, :-1]
        return F.mse_loss(((through * (1 - clear)).unsqueeze(-1) * colour.sigmoid()).sum(1), target)


class HyperNetwork(nn.Module):
    """A network whose weights another one makes for each row: Ha et al. 2017."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.Linear(4, 6 * 3 + 3)

    def forward(self, x: torch.Tensor, task: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        generated = self.weights(task)
        y = torch.einsum("ni,nio->no", x, generated[:, :18].view(-1, 6, 3)) + generated[:, 18:]
        return F.mse_loss(torch.sinh(y).clamp(-4, 4), target)


class Hopfield(nn.Module):
    """Stored patterns retrieved by a few updates: Ramsauer et al. 2021."""

    def __init__(self) -> None:
        super().__init__()
        self.patterns, self.beta = nn.Parameter(torch.randn(5, 8)), nn.Parameter(torch.tensor(0.5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(3):
            x = torch.softmax(self.beta * x @ self.patterns.t(), -1) @ self.patterns
        return torch.logsumexp(x, -1).mean()


class Kolmogorov(nn.Module):
    """B-spline activations on edges, by the recursion of their bases: Liu et al. 2024."""

    def __init__(self) -> None:
        super().__init__()
        self.base, self.spline = nn.Linear(4, 3), nn.Parameter(torch.randn(3, 4, 7))
        self.register_buffer("grid", torch.linspace(-2.5, 2.5, 10))

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        grid, y = self.grid, x.unsqueeze(-1)
        bases = ((y >= grid[:-1]) & (y < grid[1:])).to(x.dtype)
        for k in (1, 2):
            left = (y - grid[: -k - 1]) / (grid[k:-1] - grid[: -k - 1]) * bases[..., :-1]
            bases = left + (grid[k + 1 :] - y) / (grid[k + 1 :] - grid[1:-k]) * bases[..., 1:]
        return F.mse_loss(self.base(F.silu(x)) + torch.einsum("nib,oib->no", bases, self.spline), target)


class Sharp(nn.Module):
    """Spectral and weight normalisation around Maxout and Softplus units."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.utils.parametrizations.spectral_norm(nn.Linear(6, 8))
        self.two = nn.utils.parametrizations.weight_norm(nn.Linear(4, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.softplus(-self.two(self.one(x).unflatten(1, (4, 2)).amax(-1))).mean()


class Branches(nn.Module):
    """A choice by the values of the batch, in Python."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(4, 1), nn.Linear(4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.one(x) if x.sum() > 0 else self.two(x)).square().mean()


class Selecting(nn.Module):
    """A loss over the rows that a mask picks."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, selection: torch.Tensor) -> torch.Tensor:
        return self.linear(x)[selection].square().mean()


def _entry(name: str, family: str, make: Any, batch: Any, **more: Any) -> Entry:
    return Entry(name, family, make, batch, **more)


def _rows(**widths: int) -> Any:
    """Return a batch function: float rows of these widths, a vector for width 0."""
    return lambda n, _: {name: torch.randn(n, width) if width else torch.randn(n) for name, width in widths.items()}


def _recommended(n: int, _: int) -> Batch:
    return {"x": torch.randn(n, 3), "ids": torch.randint(0, 10, (n, 2, 4)), "label": torch.rand(n).round()}


def _sequences(n: int, t: int) -> Batch:
    return {"x": torch.randn(n, t, 6), "target": torch.randn(n, t, 6)}


ENTRIES = [
    _entry("GCN", "graph", GCN, graph),
    _entry("GAT", "graph", GAT, graph),
    _entry("GraphSAGE", "graph", GraphSAGE, graph),
    _entry("message passing", "graph", MessagePassing, graph),
    _entry("PointNet", "set", PointNet, lambda n, t: {"x": torch.randn(n, t, 3), "label": torch.randint(0, 4, (n,))}),
    _entry(
        "DeepSets",
        "set",
        DeepSets,
        lambda n, t: {"x": torch.randn(n, t, 4), "present": torch.rand(n, t) < 0.7, "target": torch.randn(n)},
    ),
    _entry("DLRM", "table", Recommender, _recommended),
    _entry(
        "factorisation machine",
        "table",
        FactorisationMachine,
        lambda n, t: {"ids": torch.randint(0, 20, (n, t)), "label": torch.rand(n).round()},
    ),
    _entry("experts, dense dispatch", "mixture of experts", Experts, _sequences),
    _entry("experts, fixed capacity", "mixture of experts", Capacity, _sequences),
    _entry("RealNVP", "flow", RealNVP, _rows(x=4)),
    _entry("Glow", "flow", Glow, lambda n, _: {"x": torch.randn(n, 1, 8, 8)}),
    _entry("spline flow", "flow", Spline, lambda n, _: {"x": torch.rand(n, 4)}),
    _entry("VAE", "autoencoder", VAE, _rows(x=8, noise=4)),
    _entry("VQ-VAE", "autoencoder", Quantised, _rows(x=8)),
    _entry("Siamese", "other", Siamese, _rows(x=8, other=8)),
    _entry("NeRF", "other", NeRF, lambda n, t: {"points": torch.randn(n, t, 3), "target": torch.rand(n, 3)}),
    _entry("hypernetwork", "other", HyperNetwork, _rows(x=6, task=4, target=3)),
    _entry("Hopfield", "other", Hopfield, _rows(x=8)),
    _entry("KAN", "other", Kolmogorov, _rows(x=4, target=3)),
    _entry("normalised weights", "other", Sharp, _rows(x=6)),
    _entry("branch on data", "other", Branches, _rows(x=4), refused="branches on the values", way_out="torch.where"),
    _entry(
        "rows by a mask",
        "other",
        Selecting,
        lambda n, _: {"x": torch.randn(n, 4), "selection": torch.tensor([True, False] + [True] * (n - 2))},
        refused="mask",
        way_out="torch.where",
    ),
]
